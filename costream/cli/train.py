"""``costream train``: train custom classes from labelled recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from costream.cli.click_command import Command
from costream.cli.printing import check_weight_file
from costream.cli.settings_in_force import config_option, verbosity_options
from costream.core.errors import UsageError
from costream.core.settings import AUTO
from costream.options.click_options import option, shared
from costream.options.completers import model_names
from costream.weights_io.file import SUFFIX
from costream.weights_io.licences import CLASSES


@click.command(cls=Command, no_args_is_help=True)
@click.argument("model", metavar="MODEL", shell_complete=model_names)
@option(
    "--data",
    heading="Data",
    type=click.Path(path_type=Path),
    metavar="FOLDER|TABLE.csv",
    help="A folder with a folder per class, or a table: file,start,end,label. With --labels: the"
    " labelled recordings or images.",
)
@option(
    "--labels",
    heading="Data",
    type=click.Path(path_type=Path),
    metavar="FOLDER|FILE",
    help="Timelines of complete recordings, from detect, batch or other tools; time without a label"
    " is background. Objects: boxes as COCO JSON or YOLO text files.",
)
@option(
    "--also",
    heading="Data",
    type=click.Path(exists=True, path_type=Path),
    metavar="FOLDER|TABLE.csv",
    help="Further examples, such as the clips of an earlier training: as --data without --labels.",
)
@option(
    "--group",
    heading="Data",
    metavar="COLUMN",
    help="Column of groups that are never split (person, song).",
)
@option(
    "--validation",
    heading="Data",
    type=click.FloatRange(0, 0.5),
    default=0.2,
    metavar="SHARE",
    help="Share of the examples of each class that is used for validation.",
)
@shared("rate_hz", heading="Data", help="Frame rate of recordings without time stamps.")
@shared("layout", heading="Data", metavar="NAME|FILE", help="Joint layout of the recordings.")
@shared(
    "columns",
    heading="Data",
    help="Columns of tables of joints or labels (start=HEADING,label=HEADING).",
)
@option(
    "--cache",
    heading="Data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder in which features of video and audio are cached.  [default: the user's cache]",
)
@option(
    "--data-licence",
    heading="Data",
    type=click.Choice(CLASSES),
    help="What the recordings may be used for, for the card; the narrower of it and of MODEL's"
    " licence class applies.  [default: unknown]",
)
@option(
    "--suggest",
    heading="Data",
    type=click.Path(exists=True, path_type=Path),
    metavar="FOLDER",
    help="After the training, list the recordings in FOLDER that are most worth labelling next.",
)
@option("--no-cache", heading="Data", is_flag=True, default=False, help="Do not cache features.")
@shared(
    "weights",
    heading="Training",
    envvar="COSTREAM_WEIGHTS",
    help="Weights to start from, instead of MODEL's.",
)
@shared("licence", heading="Training")
@option(
    "--frontend",
    heading="Training",
    metavar="NAME",
    help="Of auto: only this one of encoder, motion, pose, pair, costgcn-2d, costgcn-pairs, tdn and"
    " mn04, or several joined by +.",
)
@option(
    "--scratch/--no-scratch", heading="Training", default=False, help="Start from random weights."
)
@option(
    "--fine-tune/--no-fine-tune",
    heading="Training",
    default=None,
    help="Also train the frontend of video, sound and object models, which takes longer."
    "  [default: on for objects]",
)
@option(
    "--steps",
    heading="Training",
    type=click.IntRange(1),
    help="Maximum number of training steps.  [default: by the number of examples]",
)
@option(
    "--seed",
    heading="Training",
    type=click.IntRange(0),
    default=0,
    help="Seed of all random numbers.",
)
@option(
    "--epochs",
    heading="Features",
    type=click.IntRange(1),
    help="Times that every window is trained on.  [default: as published]",
)
@option(
    "--learning-rate",
    heading="Features",
    type=click.FloatRange(0, min_open=True),
    metavar="RATE",
    help="Of the first step.  [default: as published]",
)
@option(
    "--stepwise/--no-stepwise",
    heading="Features",
    default=False,
    help="Train on all steps of streams, not only on the newest row of windows.",
)
@shared("device", heading="Training", help="Where the model is trained.")
@shared("threads", heading="Training", help="CPU threads.")
@option(
    "--adapter",
    heading="Adapters and pruning",
    type=click.Choice(["none", "lora", "splora"]),
    default="none",
    help="Train low-rank differences to frozen weights; they are also written as a separate file."
    " splora can be pruned.",
)
@option(
    "--rank",
    heading="Adapters and pruning",
    type=click.IntRange(1),
    help="Rank of the adapter.  [default: 8]",
)
@option(
    "--density",
    heading="Adapters and pruning",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="SHARE",
    help="Share of the network's weights to keep; training removes complete channels.",
)
@option(
    "--compare",
    heading="Adapters and pruning",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.safetensors",
    help="Weights trained in the same way without --density; the card reports what pruning loses.",
)
@option(
    "-o",
    "--output",
    heading="Output",
    type=click.Path(path_type=Path),
    metavar="FILE.safetensors",
    help="Weight file to write, with its card (.md) and report (.html) next to it."
    "  [default: MODEL-own.safetensors]",
)
@option(
    "--overwrite/--no-overwrite",
    heading="Output",
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

    Training starts from MODEL's weights and replaces its labels by those of the data. Of video and
    audio models only the temporal part is trained by default. Classes named background, none or
    nothing (audio: also silence, text: other) become one class that makes no segments. Some
    recordings are held out for validation; the report compares the result on them with guessing
    and with the nearest class mean. The same seed gives the same weights. If a training was
    interrupted, repeat the command to resume it.

    Feature files (.npy, .npz, pickles) are learnt by the published recipes of online action
    detection.

    \b
    costream train cooadtr --data videos/ --labels corrected/ -o mine.safetensors
    costream train costgcn --data moves/ -o moves.safetensors
    costream train costgcn --data moves/ --adapter splora --density 0.3
    costream train cotrans --data sounds/ -o sounds.safetensors
    costream train eventful-vitdet --data pictures/ --labels boxes.json
    costream train miniroad --data features/ --labels gt.json
    costream detect new.mp4 -m mine.safetensors
    """
    if cache and no_cache:
        raise UsageError("--cache and --no-cache exclude each other")
    if rank is not None and values["adapter"] == "none":
        raise UsageError("only adapters have a rank", where="--rank", hint="add --adapter")
    output = output or Path(f"{Path(model).stem}-own{SUFFIX}")
    check_weight_file(output)
    from costream.training.base import TrainSettings
    from costream.training.command import train
    from costream.training.feature_cache import features_folder

    origin = click.get_current_context().get_parameter_source("weights")
    if model == AUTO and origin is not ParameterSource.COMMANDLINE:
        values["weights"] = None  # a setting for other models
    cache = None if no_cache else cache or features_folder()
    settings = TrainSettings(model=model, output=output, cache=cache, rank=rank or 8, **values)
    return int(train(settings))
