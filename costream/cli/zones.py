"""``costream zones``: a frame with a grid and places, to find the corners of zones on."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.core.errors import ExitCode, UsageError, display_name, printable
from costream.core.places import Kind, Place, check_places
from costream.core.records import VideoFrame
from costream.options.click_options import F, option
from costream.options.values import parse_places, seconds


def _place(kind: Kind, help: str) -> Callable[[F], F]:
    """Return the option of a kind of places."""
    return option(
        f"--{kind}",
        multiple=True,
        envvar=None,
        parse=partial(parse_places, kind),
        metavar="NAME='X,Y ...'",
        help=help,
    )


@click.command(cls=Command, no_args_is_help=True)
@click.argument("source", metavar="VIDEO|URL")
@_place("zone", "Draw this polygon. Repeatable.")
@_place("line", "Draw this line. Repeatable.")
@_place("mask", "Draw this polygon as a mask. Repeatable.")
@option("--start", parse=seconds, metavar="TIME", help="Take the frame at this time.")
@option(
    "--timeout", default="10", parse=seconds, metavar="TIME", help="How long to wait for a URL."
)
@option(
    *("-o", "--output"),
    default="zones.png",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The picture to write: zones.png, or zones.html to click places on it.",
)
def command(
    source: str,
    zone: tuple[Place, ...],
    line: tuple[Place, ...],
    mask: tuple[Place, ...],
    start: float | None,
    timeout: float,
    output: str,
) -> ExitCode:
    """Write one frame as PNG with a grid and the places, and print the places as TOML.

    Read the corners off the grid: parts of the picture at its upper and left edges, pixels at the
    others. Repeat with --zone, --line and --mask until the places are right; paste the TOML into a
    list of feeds. On a page (-o zones.html) you can click the corners.

    \b
    costream zones rtsp://cam1/live
    costream zones rtsp://cam1/live --zone 'door=0.1,0.2 0.4,0.2 0.4,0.9'
    """
    from costream.sinks.atomic import check_folder
    from costream.sinks.snapshot import write_grid, write_zones_page

    suffix = Path(output).suffix.lower()
    if suffix not in (".png", ".html"):
        hint = "name it zones.png or zones.html"
        raise UsageError("the picture is a PNG, or a page", where=f"-o {output}", hint=hint)
    check_folder(Path(output).parent)
    places = check_places((*zone, *line, *mask), "--zone, --line, --mask")
    frame = _frame(source, start or 0.0, timeout)
    if suffix == ".png":
        write_grid(Path(output), frame.rgb, places)
    else:
        write_zones_page(Path(output), frame.rgb, places, display_name(source))
    width, height = frame.rgb.shape[1], frame.rgb.shape[0]
    lines = [f"# {width} x {height} pixels: {output}", "[[feed]]"]
    lines.append(f"url = {json.dumps(display_name(source), ensure_ascii=False)}")
    for kind, drawn in (("zone", zone), ("line", line), ("mask", mask)):
        if drawn:
            rows = (f"    {json.dumps(str(place), ensure_ascii=False)}," for place in drawn)
            lines += [f"{kind} = [", *rows, "]"]
    click.echo(printable("\n".join(lines)))
    return ExitCode.OK


def _frame(uri: str, start_s: float, timeout_s: float) -> VideoFrame:
    """Return the first frame from a time on. SourceError when there is none."""
    from costream.sources.base import ConnectionOptions, SourceOptions, first_frame
    from costream.sources.uris import open_source

    connecting = ConnectionOptions(timeout_s=timeout_s, retries=0)
    reading = SourceOptions(start_s=start_s, connecting=connecting)
    _, frame = first_frame(open_source(uri, reading), display_name(uri), "it holds no picture")
    return frame
