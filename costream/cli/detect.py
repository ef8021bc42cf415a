"""``costream detect``: detect actions in video, skeletons or features, or objects in video."""

from __future__ import annotations

from typing import Any

import click

from costream.cli.options import config_option, option, positive, seconds
from costream.errors import UsageError
from costream.layouts import find_layout
from costream.settings import DetectSettings
from costream.sinks.registry import FORMATS, parse_formats
from costream.sources.skeletons.headings import parse_columns


@click.command(no_args_is_help=True)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option("-m", "--model", default="cooadtr", metavar="NAME|FILE", help="See 'costream models list'.")
@click.option(
    "--weights", metavar="PATH", help="Weight file, or a folder that holds NAME.safetensors."
)
@option("-o", "--output", metavar="FOLDER|-", help="Write files to this folder; '-' is stdout.")
@option(
    "-f",
    "--format",
    "formats",
    multiple=True,
    metavar="LIST",
    help=f"Comma-separated, repeatable: {', '.join(FORMATS)}.  [default with -o: jsonl]",
)
@option(
    "--start",
    type=str,
    callback=seconds,
    default="0",
    metavar="TIME",
    help="Start time (seconds or HH:MM:SS).",
)
@option("--end", type=str, callback=seconds, metavar="TIME", help="End time.")
@option(
    "--duration",
    type=str,
    callback=seconds,
    metavar="TIME",
    help="Length to process, instead of --end.",
)
@option(
    "--fps",
    type=float,
    callback=positive,
    help="Steps per second of the model. Skeletons without time stamps: their frame rate.",
)
@option(
    "--layout",
    metavar="NAME|FILE.toml",
    help="Skeletons: joint layout (ntu-25, body-25, ...), if the file does not define it.",
)
@option(
    "--columns",
    metavar="LIST",
    help="Skeleton tables: the columns in order (frame,x,y,z), or by heading (x={}_px,y={}_py).",
)
@option(
    "--channel",
    type=click.IntRange(1),
    metavar="N",
    help="Audio models: use only this channel.  [default: the mean of all]",
)
@option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True),
    help="Probability that opens a segment, for every label.",
)
@option(
    "--min-length",
    type=str,
    callback=seconds,
    metavar="TIME",
    help="Drop shorter segments (seconds).",
)
@option(
    "--min-gap",
    type=str,
    callback=seconds,
    metavar="TIME",
    help="Merge segments of a label closer than this (seconds).",
)
@option("--top-k", type=click.IntRange(1), default=3, help="Labels in each prediction.")
@option("--scores/--no-scores", default=False, help="Write every class probability.")
@option(
    "--tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Models eventful-*: maximum number of tokens computed per frame.  [default: all]",
)
@option(
    "--budget",
    metavar="40ms|20GMAC|0.5x|@FILE",
    help="Models eventful-*: maximum cost of a step; FILE may be changed during the run.",
)
@option("--track/--no-track", default=False, help="Objects: assign track ids.")
@option("--wait/--no-wait", default=False, help="No output before the model's window is full.")
@option("--device", default="auto", metavar="auto|cpu|cuda:N|mps", help="Where the model runs.")
@option("--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), default="float32")
@option("--threads", type=click.IntRange(1), default=1, help="Threads of the network.")
@option("--overwrite/--no-overwrite", default=False, help="Replace existing results.")
@option("--skip-existing/--no-skip-existing", default=False, help="Keep complete results.")
@option("--live/--no-live", default=True, help="Live view, if stderr is a terminal.")
@option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
@option("--log-file", metavar="FILE", help="Also log warnings and settings to this file.")
@option("-v", "--verbose", count=True, default=0, help="More messages; -vv: tracebacks.")
@option("-q", "--quiet", is_flag=True, default=False, help="Only errors on stderr.")
@config_option()
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Detect actions in video, skeletons or features, or objects in video, step by step.

    SOURCE is a video file; a table of joints (.csv), a Kinect .skeleton file, Kinetics-skeleton
    JSON, a folder of OpenPose keypoints or a pyskl pickle; features (.npy, .npz, or a
    THUMOS-style pickle; FILE.pickle#NAME selects one video of it); or '-' for stdin.

    Results go to files with -o, as JSONL to a pipe, and as a readable timeline to a terminal.

    \b
    costream detect clip.mp4
    costream detect *.mp4 -o out -f jsonl,csv,srt
    cat clip.ts | costream detect - | jq 'select(.type == "segment")'
    costream detect poses.csv -m costgcn --fps 30
    costream detect street.mp4 -m eventful-vitdet --budget 40ms --track -o out -f jsonl,csv,mp4
    """
    from costream.runtime.detect import detect

    return int(detect(settings_of(values), effective(ctx)))


def settings_of(values: dict[str, Any]) -> DetectSettings:
    """Check the combination of options, before anything is loaded."""
    start, end = values["start"], values["end"]
    if values["duration"] is not None:
        if end is not None:
            raise UsageError("--end and --duration exclude each other")
        end = start + values["duration"]
    if end is not None and end <= start:
        raise UsageError(f"the end ({end:g} s) is not after the start ({start:g} s)")
    if values["columns"] is not None:
        parse_columns(values["columns"])
    if values["layout"] is not None:
        find_layout(values["layout"])
    if values["overwrite"] and values["skip_existing"]:
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if values.get("budget") is not None:
        if values["tokens"] is not None:
            raise UsageError("--tokens and --budget exclude each other")
        from costream.runtime.budget.budget import parse_budget

        parse_budget(values["budget"])
    formats = parse_formats(values["formats"])
    if "coco" in formats and start > 0:
        hint = "omit --start"
        raise UsageError("needs the frames of the whole video", where="--format coco", hint=hint)
    if values["quiet"] and values["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    return DetectSettings(
        sources=tuple(values["sources"]),
        model=values["model"],
        weights=values["weights"],
        output=values["output"],
        formats=formats,
        start_s=start,
        end_s=end,
        rate_hz=values["fps"],
        layout=values["layout"],
        columns=values["columns"],
        threshold=values["threshold"],
        min_length_s=values["min_length"],
        min_gap_s=values["min_gap"],
        top_k=values["top_k"],
        scores=values["scores"],
        wait=values["wait"],
        device=values["device"],
        dtype=values["dtype"],
        threads=values["threads"],
        overwrite=values["overwrite"],
        skip_existing=values["skip_existing"],
        live=values["live"],
        color=values["color"],
        verbosity=-1 if values["quiet"] else values["verbose"],
        log_file=values["log_file"],
        channel=values["channel"],
        raw=values.get("raw"),
        tokens=values.get("tokens"),
        budget=values.get("budget"),
        track=values.get("track", False),
    )


def effective(ctx: click.Context) -> list[str]:
    """Return a line for each setting that is not a default: its value and its origin."""
    lines = []
    for name, value in ctx.params.items():
        origin = ctx.get_parameter_source(name)
        if origin is not None and origin.name != "DEFAULT":
            lines.append(f"{name} = {value} ({origin.name.lower().replace('_', ' ')})")
    return lines
