"""Shell completion: the command that prints its script, and the values of options.

The script runs ``costream`` with ``_COSTREAM_COMPLETE``. Nothing here loads torch: it has to be
done while somebody types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
)

from costream.errors import CostreamError

VARIABLE = "_COSTREAM_COMPLETE"
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


@click.command(no_args_is_help=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes commands, options, models and formats with the Tab key.

    \b
    bash, in ~/.bashrc:  eval "$(costream completion bash)"
    zsh, in ~/.zshrc:    eval "$(costream completion zsh)"
    fish:                costream completion fish > ~/.config/fish/completions/costream.fish

    bash 4.4 or newer (macOS comes with 3.2); zsh after compinit.
    """
    click.echo(_completion_of(shell).source(), nl=False)


def complete(instruction: str) -> int:
    """Answer the script of a shell, and return the exit code; ``instruction``: bash_complete."""
    from costream.cli import cli

    _register()
    with suppress(CostreamError):  # nobody wants to read of an error while typing
        return shell_complete(cli, {}, "costream", VARIABLE, instruction)
    return 1


class _Bash(BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words without the "=" that bash makes a word of its own."""
        args, incomplete = super().get_completion_args()
        return [arg for arg in args if arg != "="], incomplete


class _Joined(ShellComplete):
    """Completion of ``--model=co`` in shells to which that is one word."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return words that begin with the option if the incomplete one does."""
        items = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if not (equals and option.startswith("-")):
            return items
        plain = [item for item in items if item.type == "plain"]
        return [CompletionItem(f"{option}={i.value}", help=i.help) for i in plain] or items


class _Zsh(_Joined, ZshComplete):
    pass


class _Fish(_Joined, FishComplete):
    # A value may have commas: csv,srt.
    source_template = FishComplete.source_template.replace('split ","', 'split -m 1 ","')


def _register() -> None:
    for kind in (_Bash, _Zsh, _Fish):
        add_completion_class(kind)


def _completion_of(shell: str) -> ShellComplete:
    from costream.cli import cli

    _register()
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(cli, {}, "costream", VARIABLE)


# Completers of values: of options by their names and metavars, of arguments where declared.


def completer(names: Sequence[str], metavar: str) -> Completer | None:
    """Return the completer of an option; None if its values cannot be listed."""
    if "--model" in names:
        return model_names
    if "--format" in names:
        return format_names
    if "--layout" in names:
        return layout_names
    kinds = metavar.strip("[]").split("|")
    if any(kind.startswith(("FILE", "PATH")) for kind in kinds):
        return file_names
    return folder_names if "FOLDER" in kinds else None


def file_names(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Complete files, by the shell."""
    return [CompletionItem(word, type="file")]


def folder_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete folders, by the shell."""
    return [CompletionItem(word, type="dir")]


def model_names(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Complete the models that have weights here, one or a list; else weight files."""
    from costream.models.registry import list_models

    models = {e.name: e.summary for e in list_models() if e.path is not None}
    return in_list(models, word) or file_names(ctx, param, word)


def published_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete the checkpoints that can be fetched."""
    from costream.checkpoints.store import published

    return in_list({name: entry.source for name, entry in published().items()}, word)


def format_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete output formats, one or a list."""
    from costream.sinks.registry import FORMATS

    return in_list({name: FORMATS[name].about for name in FORMATS}, word)


def layout_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete layouts of joints; else files."""
    from costream.layouts import LAYOUTS

    return in_list(dict.fromkeys(LAYOUTS, ""), word) or file_names(ctx, param, word)


def in_list(values: dict[str, str], word: str) -> list[CompletionItem[str]]:
    """Return the values for the last item of a comma-separated list, with their help."""
    head, comma, last = word.rpartition(",")
    named = head.split(",")
    return [
        CompletionItem(head + comma + value, help=text)
        for value, text in values.items()
        if value.startswith(last) and value not in named
    ]
