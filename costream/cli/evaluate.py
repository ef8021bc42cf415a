"""``costream evaluate``: compute the metrics of a model, or of finished results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costream.cli.options import config_option, option, shared, verbosity_options
from costream.options.flags import seconds


def _tokens(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Parse ``30,60,all`` as numbers, None for all; None if nothing is given."""
    if value is None:
        return None
    parts = [part.strip().lower() for part in value.split(",")]
    if not all(part == "all" or (part.isascii() and part.isdigit()) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of numbers or 'all'", ctx, param)
    return tuple(None if part == "all" else int(part) for part in parts)


@click.command(no_args_is_help=True)
@option("-m", "--model", metavar="NAME|FILE", help="See 'costream models list'.")
@shared("weights", envvar="COSTREAM_WEIGHTS")
@option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Recordings or images. Without --labels: a folder with one folder per class, or a table:"
    " file,start,end,label; lines of text: text,label.",
)
@option(
    "--labels",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Ground truth: timelines or annotations in any known format; boxes of objects.",
)
@option(
    "--results",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Instead of a model: results of an earlier run (frame metrics need --scores).",
)
@option(
    "--protocol",
    type=click.Choice(["thumos14", "tvseries", "glue"]),
    help="Score the classes and frames of this data set's standard protocol; glue: lines of text,"
    " with windows of 0.5, 1 and 2 times their mean length.",
)
@option(
    "--tolerance",
    callback=seconds,
    metavar="TIME",
    help="Also report frame metrics for labels that are up to this much off.",
)
@option(
    "--tokens",
    callback=_tokens,
    metavar="N,...|all",
    help="Objects: number of tokens computed per frame; one row for each.  [default: all]",
)
@option("--group", metavar="COLUMN", help="Column that groups examples (person, song).")
@shared("rate_hz", help="Steps per second of the model.")
@shared("layout", metavar="NAME|FILE", help="Joint layout of skeletons.")
@shared("columns", help="Columns of tables of joints.")
@option(
    "--joined",
    type=click.IntRange(0),
    default=10,
    help="Examples concatenated to a stream for frame metrics; 0: no frame metrics.",
)
@option("--seed", type=click.IntRange(0), default=0, help="Seed of the order in streams.")
@shared("device", "dtype", "threads")
@option("--json", "as_json", is_flag=True, default=False, help="Print JSON.")
@option(
    "--png",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw classes, reliability, and precision against cost.",
)
@verbosity_options
@config_option()
def command(tolerance: float | None, **values: Any) -> int:
    """Evaluate a model on labelled recordings, run step by step as in 'detect' and 'listen'.

    Whole recordings (--labels): average precision of frames, plain and calibrated, accuracy,
    calibration error; F1 and average precision of the segments of the timeline; action starts;
    latency of detection. 95 % intervals resample whole recordings, if there are six or more.

    Clips of one class each: top-1 and top-5 accuracy by the mean of their steps, their majority
    vote and the last step, and of whole groups (songs); results per class, and confusions.

    Lines of text: the same of each line alone, and of lines one after the other.

    Objects (boxes as --labels): AP and AP50, and the cost per image.

    \b
    costream evaluate -m cooadtr --data recordings/ --labels corrected/ --tolerance 1s
    costream evaluate --results out/ --labels truth/ --json
    costream evaluate -m mine.safetensors --data test.pickle --labels gt.json --protocol thumos14
    costream evaluate -m cotrans --data genres.csv --group song
    costream evaluate -m eventful-vitdet --data clips/ --labels boxes.json --tokens 64,128,all
    """
    from costream.evaluation.command import evaluate
    from costream.evaluation.settings import EvaluateSettings

    return int(evaluate(EvaluateSettings(tolerance_s=tolerance or 0.0, **values)))
