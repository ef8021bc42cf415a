"""``costream mcp``: what assistants may ask of costream, by the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.core.errors import ModelError, UsageError
from costream.options.click_options import option
from costream.options.completers import file_names


@click.command(cls=Command, no_args_is_help=True)
@click.argument("roots", nargs=-1, required=True, shell_complete=file_names)
@option(
    "--time-limit",
    heading="Limits",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time of a call.",
)
@option(
    "--size-limit",
    heading="Limits",
    type=click.FloatRange(min=0.001),
    default=4.0,
    show_default=True,
    metavar="GB",
    help="Largest file that is read.",
)
@option(
    "--most",
    heading="Limits",
    type=click.IntRange(min=1, max=10_000),
    default=500,
    show_default=True,
    help="Most segments, events or models in an answer.",
)
def command(roots: tuple[str, ...], time_limit: float, size_limit: float, most: int) -> int:
    """Answer assistants over standard input and output (Model Context Protocol).

    Assistants can list models, describe files, detect and listen in recordings, read the status
    file of a watch and search its events, of files in the folders ROOTS and below only. Nothing is
    written. An assistant's program starts this command; its settings name it.

    \b
    costream mcp ~/recordings
    costream mcp /srv/cameras /srv/watch --time-limit 120
    """
    for root in roots:
        if not Path(root).is_dir():
            raise UsageError("no such folder", where=root)
    try:
        from costream.cli.assistant_access import Limits
        from costream.cli.assistant_server import serve
    except ImportError as error:
        hint = "pip install 'costream[mcp]'"
        raise ModelError(f"needs the package mcp ({error})", hint=hint) from error
    serve(roots, Limits(time_limit, int(size_limit * 1e9), most))
    return 0
