"""The command line: a lazy click group, one file a command.

Help texts live here as strings and a command's module is imported when the command is called,
so that ``costream --help`` answers at once and loads no torch.
"""

from __future__ import annotations

from importlib import import_module

import click

from costream import __version__

# name -> (module that holds ``command``, line for the overview)
COMMANDS: dict[str, tuple[str, str]] = {
    "detect": ("costream.cli.detect", "Actions in video or feature files, as a timeline."),
    "listen": ("costream.cli.listen", "Music genres and sounds in audio, from files or --mic."),
    "watch": ("costream.cli.watch", "Live feeds, cameras, microphones: monitoring with alerts."),
    "batch": ("costream.cli.batch", "Whole folders to files and tables, resumable."),
    "models": ("costream.cli.models", "List, show, fetch, import and verify models and weights."),
    "features": (
        "costream.cli.features",
        "Feature files of video or sound.",
    ),
    "report": ("costream.cli.report", "Results as a page or picture; where two runs differ."),
    "train": ("costream.cli.train", "Teach a model own classes from labelled recordings."),
    "evaluate": ("costream.cli.evaluate", "A model's metrics on labelled recordings."),
    "bench": ("costream.cli.bench", "Measure: continual steps, operation counts, whole runs."),
    "doctor": (
        "costream.cli.doctor",
        "What this machine can do, and what to install for the rest.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and give the command, None when there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]}.command is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Watch and listen with continual inference networks.

    Every step is computed once: the same answer as recomputing the window, for a fraction of
    the work.

    \b
    costream detect clip.mp4                    a timeline of actions
    costream detect clip.mp4 -o out -f csv,srt  the same as files
    costream listen --mic                       what is to be heard
    """
