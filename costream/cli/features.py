"""``costream features``: write feature files of video or audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costream.cli.options import config_option, option, positive, seconds
from costream.errors import UsageError


@click.command(no_args_is_help=True)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option(
    "-m",
    "--model",
    default="cooadtr",
    metavar="NAME|FILE",
    help="Model whose frontend computes the features; see 'costream models list'.",
)
@click.option(
    "--weights", metavar="PATH", help="Weight file, or a folder that holds NAME.safetensors."
)
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.npz|FOLDER",
    help="Output file; a folder for several sources.",
)
@option("--start", callback=seconds, default="0", metavar="TIME", help="Start time.")
@option("--end", callback=seconds, metavar="TIME", help="End time.")
@option("--duration", callback=seconds, metavar="TIME", help="Length, instead of --end.")
@option("--fps", type=float, callback=positive, help="Rows per second.  [default: the model's]")
@option("--device", default="auto", metavar="auto|cpu|cuda:N|mps", help="Where the model runs.")
@option("--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), default="float32")
@option("--threads", type=click.IntRange(1), default=1, help="Threads of the network.")
@option("--overwrite/--no-overwrite", default=False, help="Replace existing files.")
@option("-v", "--verbose", count=True, default=0, help="More messages; -vv: tracebacks.")
@option("-q", "--quiet", is_flag=True, default=False, help="Only errors on stderr.")
@config_option()
def command(**values: Any) -> int:
    """Write the features that a model's frontend computes from video or audio; prints the files.

    An .npz holds one row per step, as 'rgb' and 'flow' for TSN and as 'features' for others, with
    the 'times' of the rows in seconds and 'rate_hz'. Such a file can be used in place of a
    recording everywhere, with any model whose rows have the same width.

    \b
    costream features clip.mp4 -o clip.npz
    costream detect clip.npz -m cooadtr
    costream models import tsn_rgb.pth tsn_flow.pth --name tsn-kinetics
    costream features videos/*.mp4 -m tsn-kinetics -o features/
    """
    start_s, end_s = values["start"], values["end"]
    if values["duration"] is not None:
        if end_s is not None:
            raise UsageError("--end and --duration exclude each other")
        end_s = start_s + values["duration"]
    if end_s is not None and end_s <= start_s:
        raise UsageError(f"the end ({end_s:g} s) is not after the start ({start_s:g} s)")
    if values["quiet"] and values["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    from costream.runtime.features import FeatureSettings, features

    settings = FeatureSettings(
        sources=tuple(values["sources"]),
        model=values["model"],
        weights=values["weights"],
        output=values["output"],
        start_s=start_s,
        end_s=end_s,
        rate_hz=values["fps"],
        device=values["device"],
        dtype=values["dtype"],
        threads=values["threads"],
        overwrite=values["overwrite"],
        verbosity=-1 if values["quiet"] else values["verbose"],
    )
    return int(features(settings))
