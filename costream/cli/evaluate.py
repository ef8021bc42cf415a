"""``costream evaluate``: compute the metrics of a model, or of finished results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costream.cli.click_command import Command
from costream.cli.settings_in_force import config_option, verbosity_options
from costream.options.click_options import option, shared
from costream.options.values import seconds, token_limits


@click.command(cls=Command, no_args_is_help=True)
@option("-m", "--model", heading="Model", metavar="NAME|FILE", help="See 'costream models list'.")
@shared("weights", envvar="COSTREAM_WEIGHTS")
@shared("licence", "device", "dtype", "provider", "threads")
@option(
    "--tokens",
    heading="Model",
    parse=token_limits,
    metavar="N|25%|'>T'|all,...",
    help="Objects: tokens or places computed per frame, as for detect; a row of results for each,"
    " and with all among them the share of boxes alike.  [default: as for detect]",
)
@shared("policy", heading="Model", help="Which of a number of tokens are computed, as for detect.")
@option(
    "--data",
    heading="Data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Recordings or images. Without --labels: a folder with a folder per class, or a table:"
    " file,start,end,label; lines of text: text,label.",
)
@option(
    "--labels",
    heading="Data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Ground truth: timelines or annotations in any supported format; boxes of objects.",
)
@option(
    "--results",
    heading="Data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Results of an earlier run, instead of a model. Frame metrics need --scores.",
)
@option(
    "--group", heading="Data", metavar="COLUMN", help="Column that groups examples (person, song)."
)
@shared("rate_hz", heading="Data", help="Steps of the model per second.")
@shared("layout", heading="Data", metavar="NAME|FILE", help="Joint layout of skeletons.")
@shared(
    "columns",
    heading="Data",
    help="Columns of tables of joints or labels (start=HEADING,label=HEADING).",
)
@option(
    "--protocol",
    heading="Metrics",
    type=click.Choice(["thumos14", "thumos", "tvseries", "glue"]),
    help="Score the classes and frames of this data set's standard protocol. glue: lines of text,"
    " with windows of 0.5, 1 and 2 times their mean length.",
)
@option(
    "--tolerance",
    heading="Metrics",
    parse=seconds,
    metavar="TIME",
    help="Also report frame metrics that forgive errors of labels up to this time.",
)
@option(
    "--joined",
    heading="Metrics",
    type=click.IntRange(0),
    default=10,
    help="Examples joined to one stream for frame metrics; 0: no frame metrics.",
)
@option(
    "--seed",
    heading="Metrics",
    type=click.IntRange(0),
    default=0,
    help="Seed of the order of examples in streams.",
)
@option("--json", "as_json", heading="Output", is_flag=True, default=False, help="Print JSON.")
@option(
    "--png",
    heading="Output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw classes, reliability, and precision against cost.",
)
@verbosity_options
@config_option()
def command(tolerance: float | None, **values: Any) -> int:
    """Evaluate a model on labelled recordings, step by step as in 'detect' and 'listen'.

    Complete recordings (--labels): average precision of frames, plain and calibrated, accuracy and
    calibration error; F1 and average precision of segments; action starts; detection latency.
    95 % intervals resample recordings, if there are six or more.

    Clips of one class each: top-1 and top-5 accuracy by the mean of their steps, their majority
    vote and the last step, also of groups (songs); results per class, and confusions.

    Lines of text: the same for each line alone, and for lines one after the other.

    Objects (boxes as --labels): AP and AP50, and the cost per image.

    \b
    costream evaluate -m cooadtr --data videos/ --labels corrected/ --tolerance 1s
    costream evaluate --results out/ --labels truth/ --json
    costream evaluate -m mine.safetensors --data test.pickle --labels gt.json \\
        --protocol thumos14
    costream evaluate -m cotrans --data genres.csv --group song
    costream evaluate -m eventful-vitdet --data clips/ --labels boxes.json \\
        --tokens 64,128,all
    """
    from costream.evaluation.command import evaluate
    from costream.evaluation.evaluate_settings import EvaluateSettings

    if values["protocol"] == "thumos":
        values["protocol"] = "thumos14"
    return int(evaluate(EvaluateSettings(tolerance_s=tolerance or 0.0, **values)))
