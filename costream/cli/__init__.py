"""Command line: a lazy click group, one module per command.

The summaries of the commands are kept here and a command's module is imported when it is called,
so that ``costream --help`` is fast and does not load torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

import click

from costream.cli.click_command import Command
from costream.core.commit import code_version

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name -> (module that holds ``command``, line for the overview)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("costream.cli.demo", "Run three shipped samples and write a report of them."),
    "detect": (
        "costream.cli.detect",
        "Detect actions or objects in video, skeleton or feature files.",
    ),
    "listen": ("costream.cli.listen", "Recognise music genres and sounds in files or with --mic."),
    "read": ("costream.cli.read", "Label the lines or words of text: files, pipes, logs."),
    "watch": ("costream.cli.watch", "Monitor live feeds, cameras and microphones, with alerts."),
    "zones": ("costream.cli.zones", "Show a frame with a grid, to draw zones, lines and masks on."),
    "batch": ("costream.cli.batch", "Process folders to files and tables; can be resumed."),
    "models": ("costream.cli.models", "List, show, fetch, import and verify models and weights."),
    "features": ("costream.cli.features", "Write feature files of video or audio."),
    "find": ("costream.cli.find", "Find moments in recordings that look like an example."),
    "clips": ("costream.cli.clips", "Cut the segments of results out of their sources."),
    "search": ("costream.cli.search", "Find events of watches in their store."),
    "report": ("costream.cli.report", "Show results as a page or image; compare two runs."),
    "train": ("costream.cli.train", "Train a model on custom classes from labelled recordings."),
    "evaluate": ("costream.cli.evaluate", "Compute the metrics of a model on labelled recordings."),
    "bench": (
        "costream.cli.bench",
        "Benchmark continual steps, operation counts and complete runs.",
    ),
    "doctor": (
        "costream.cli.doctor",
        "Check what works on this machine, and what to install for the rest.",
    ),
    "mcp": ("costream.cli.mcp", "Answer assistants, by the Model Context Protocol."),
    "schema": (
        "costream.cli.schema",
        "Print the JSON Schema of results, cards, feeds, settings.",
    ),
    "completion": ("costream.cli.completion", "Print the completion script of bash, zsh or fish."),
    "help": ("costream.cli.help", "Show the manual: a page for each command and subject."),
}


class SuggestingGroup(click.Group):
    """A group that names similar commands for a misspelt one."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names. UsageError if there is none."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from costream.core.formatting import suggest_names

            hint = suggest_names(args[0], self.list_commands(ctx))
            if os.path.isfile(args[0]):
                hint = "a command comes first: costream detect FILE"
            raise click.UsageError(f"no such command {args[0]!r}, {hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(SuggestingGroup):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]}.command is not a click command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete commands from the table alone, and options."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"costream {code_version()}")
        context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the release and the commit, and exit.",
)
@click.option(
    "--code",
    type=click.Path(exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE.py",
    help="Run this Python file first. The command can then use the networks, frontends, sources and"
    " formats that it registers; see 'costream help adding'. Repeatable.",
)
def cli(code: tuple[str, ...]) -> None:
    """Continual inference networks on video, audio and skeletons.

    Every step is computed once. The result is that of recomputing the window, at a fraction of
    the cost.

    \b
    costream detect clip.mp4                    a timeline of actions
    costream detect clip.mp4 -o out -f csv,srt  the same as files
    costream listen --mic                       music and sounds from the microphone
    """
    for path in code:
        from costream.core.user_code import run_code

        run_code(path)
