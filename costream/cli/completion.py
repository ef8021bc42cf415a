"""Shell completion: the command that prints its script, and the answer to that script.

The script runs ``costream`` with ``_COSTREAM_COMPLETE``. Nothing here loads torch,
because completion must be fast.
"""

from __future__ import annotations

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

from costream.cli.click_command import Command
from costream.core.errors import CostreamError

VARIABLE = "_COSTREAM_COMPLETE"


@click.command(cls=Command, no_args_is_help=True)
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
    with suppress(CostreamError):  # messages would disturb the typed line
        return shell_complete(cli, {}, "costream", VARIABLE, instruction)
    return 1


class _Bash(BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words without "=", which bash treats as a word."""
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
