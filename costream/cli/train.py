"""``costream train``: train custom classes from labelled recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costream.cli.options import (
    check_weight_file,
    config_option,
    model_names,
    option,
    shared,
    verbosity_options,
)
from costream.core.errors import UsageError
from costream.weights_io.file import SUFFIX


@click.command(no_args_is_help=True)
@click.argument("model", metavar="MODEL", shell_complete=model_names)
@option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER|TABLE.csv",
    help="A folder with one folder per class, or a table: file,start,end,label; with --labels the"
    " labelled recordings or images.",
)
@option(
    "--labels",
    type=click.Path(path_type=Path),
    metavar="FOLDER|FILE",
    help="Timelines of whole recordings, from detect, batch or other tools: time without a label"
    " is background. For objects: boxes, as COCO JSON or YOLO text files.",
)
@shared(
    "weights",
    envvar="COSTREAM_WEIGHTS",
    help="Weights to start from, instead of MODEL's own.",
)
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.safetensors",
    help="File of the new weights; card (.md) and report (.html) are written beside it."
    "  [default: MODEL-own.safetensors]",
)
@option("--group", metavar="COLUMN", help="Column of groups that are never split (person, song).")
@option(
    "--validation",
    type=click.FloatRange(0, 0.5),
    default=0.2,
    help="Share of the examples of each class used for validation.",
)
@option(
    "--steps",
    type=click.IntRange(1),
    help="Maximum number of training steps.  [default: by the number of examples]",
)
@option("--scratch/--no-scratch", default=False, help="Start from random weights.")
@option(
    "--fine-tune/--no-fine-tune",
    default=None,
    help="Video, sound and object models: also train the frontend; takes some minutes more."
    "  [default: objects yes, others no]",
)
@option(
    "--adapter",
    type=click.Choice(["none", "lora", "splora"]),
    default="none",
    help="Learn low-rank differences to frozen weights; a file of these alone is written beside"
    " the result. splora can be pruned.",
)
@option("--rank", type=click.IntRange(1), help="Rank of the adapter.  [default: 8]")
@option(
    "--density",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Share of the network's weights that may stay: whole channels are removed in training.",
)
@option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.safetensors",
    help="Weights of the same training without --density: the card says what pruning loses.",
)
@option("--seed", type=click.IntRange(0), default=0)
@shared("rate_hz", help="Frame rate of recordings without times.")
@shared("layout", metavar="NAME|FILE", help="Joint layout of the recordings.")
@shared("columns", help="Columns of tables of joints.")
@shared("device", help="Where it is trained.")
@shared("threads", help=None)
@option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Cache folder for features of video and audio.  [default: in the user's cache]",
)
@option("--no-cache", is_flag=True, default=False, help="Do not cache features.")
@option(
    "--overwrite/--no-overwrite",
    default=False,
    help="Replace existing weights, and an unfinished training with other options or data.",
)
@verbosity_options
@config_option()
def command(
    model: str,
    output: Path | None,
    cache: Path | None,
    no_cache: bool,
    rank: int | None,
    **values: Any,
) -> int:
    """Train MODEL on labelled actions, sounds or objects, in minutes on one core.

    Training starts from MODEL's weights; its labels are replaced by those of the data. For video
    and audio only the temporal part is trained by default. Classes named background, none or
    nothing (audio: also silence, text: other) are one, which makes no segments. Some of the
    recordings, never single frames, are held out for validation, and a verdict compares the result
    on them with guessing and with the nearest class mean. The same seed gives the same weights.
    Repeat the command to resume a training that was interrupted or killed.

    \b
    costream train cooadtr --data recordings/ --labels corrected/ -o mine.safetensors
    costream train costgcn --data moves/ -o moves.safetensors
    costream train costgcn --data moves/ --adapter splora --density 0.3 -o small.safetensors
    costream train cotrans --data sounds/ -o sounds.safetensors
    costream train eventful-vitdet --data pictures/ --labels boxes.json -o things.safetensors
    costream detect new.mp4 -m mine.safetensors
    """
    if cache and no_cache:
        raise UsageError("--cache and --no-cache exclude each other")
    if rank is not None and values["adapter"] == "none":
        raise UsageError("only adapters have a rank", where="--rank", hint="give --adapter too")
    output = output or Path(f"{Path(model).stem}-own{SUFFIX}")
    check_weight_file(output)
    from costream.training.base import TrainSettings
    from costream.training.command import train
    from costream.training.feature_cache import features_folder

    cache = None if no_cache else cache or features_folder()
    given = TrainSettings(model=model, output=output, cache=cache, rank=rank or 8, **values)
    return int(train(given))
