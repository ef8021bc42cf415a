"""``costream find``: find moments in recordings that look like an example."""

from __future__ import annotations

from typing import Any

import click

from costream.cli.click_command import Command
from costream.cli.printing import print_json, print_table
from costream.cli.settings_in_force import config_option
from costream.core.formatting import short_time
from costream.options.click_options import json_option, option, shared
from costream.options.completers import file_names
from costream.options.options import Options
from costream.options.values import seconds


@click.command(cls=Command, no_args_is_help=True)
@click.argument("example", shell_complete=file_names)
@click.argument("places", nargs=-1, required=True, shell_complete=file_names)
@shared("model", default="encoder", help="Model whose frontend computes the features.")
@shared("weights", envvar="COSTREAM_WEIGHTS")
@shared("licence", "device", "threads")
@option(
    "--at",
    heading="Input",
    parse=seconds,
    metavar="TIME",
    help="Moment of the example, if it is a video.  [default: all of it]",
)
@shared("rate_hz", help="Pictures a second of a video.  [default: 1]")
@option(
    "-n",
    "--count",
    heading="Output",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Most results.",
)
@option(
    "--cache/--no-cache",
    heading="Output",
    default=True,
    show_default=True,
    help="Keep the features of each recording in a folder .costream next to it.",
)
@json_option
@shared("verbose", "quiet")
@config_option()
def command(
    example: str,
    places: tuple[str, ...],
    at: float | None,
    count: int,
    cache: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Find moments in recordings that look like an example.

    EXAMPLE is a picture or a video. PLACES are pictures, videos, folders of them, and results of
    'detect' or 'batch', whose recordings are searched. Prints file, time, and similarity: the
    cosine of the features, 1 for the same picture.

    \b
    costream find bicycle.jpg recordings/
    costream find clip.mp4 --at 0:12 recordings/ -n 3 --json
    costream find person.jpg results/            also prints the labels at that time
    costream find new.jpg classes/ -n 1          the nearest picture, and so its folder
    """
    from costream.runtime.find import find

    if at is not None:
        values |= {"start_s": at, "end_s": at + 1 / (values["rate_hz"] or 1)}
    found = find(example, Options(sources=places, **values), count, cached=cache)
    if as_json:
        print_json([match.to_json() for match in found.matches])
    elif found.matches:
        rows = [("similarity", "time", "file", "labels")]
        for m in found.matches:
            time = short_time(m.time_s) if m.moments > 1 else ""
            rows.append((f"{m.similarity:.3f}", time, m.file, ", ".join(m.labels)))
        shown = 4 if any(m.labels for m in found.matches) else 3
        print_table([row[:shown] for row in rows])
    return int(found.exit_code)
