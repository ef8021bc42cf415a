"""``costream train``: own classes from labelled recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costream.cli.options import config_option, option, positive
from costream.errors import UsageError


@click.command(no_args_is_help=True)
@click.argument("model", metavar="MODEL")
@option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER|TABLE.csv",
    help="A folder with one folder a class, or a table: file,start,end,label.",
)
@option("--weights", metavar="PATH", help="Weights to start from, instead of MODEL's own.")
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.safetensors",
    help="The new weights.  [default: MODEL-own.safetensors]",
)
@option("--group", metavar="COLUMN", help="Column that a split never divides (person, song).")
@option(
    "--validation",
    type=click.FloatRange(0, 0.5),
    default=0.2,
    help="Share of the examples of each class to validate with.",
)
@option(
    "--steps",
    type=click.IntRange(1),
    help="Training steps.  [default: 400; for sound 60 and 4 for each example]",
)
@option("--scratch/--no-scratch", default=False, help="Start from random weights.")
@option("--seed", type=click.IntRange(0), default=0)
@option("--fps", type=float, callback=positive, help="Frame rate of recordings without times.")
@option("--layout", metavar="NAME|FILE", help="Joint layout of the recordings.")
@option("--columns", metavar="LIST", help="Columns of tables of joints.")
@option("--threads", type=click.IntRange(1), default=1)
@option("--overwrite/--no-overwrite", default=False, help="Replace existing weights.")
@option("-v", "--verbose", count=True, default=0, help="Say more; -vv: tracebacks.")
@option("-q", "--quiet", is_flag=True, default=False, help="Errors only on stderr.")
@config_option()
def command(**values: Any) -> int:
    """Teach MODEL the actions or sounds of labelled recordings, in minutes on one core.

    MODEL's weights are where it starts from; its labels are replaced by those of the data. Of a
    model for sound only the temporal part learns, and a class called background, silence or none
    makes no segments. A part of the recordings, never of their frames, is kept to validate with.
    The same seed gives the same weights.

    \b
    costream train costgcn --data moves/ -o moves.safetensors
    costream detect new.csv -m moves.safetensors
    costream train cotrans --data sounds/ -o sounds.safetensors
    costream listen --mic -m sounds.safetensors
    """
    if values["quiet"] and values["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    output = values["output"] or Path(f"{Path(values['model']).stem}-own.safetensors")
    if output.suffix != ".safetensors":
        raise UsageError("weights end in .safetensors", where=output)
    from costream.training.family import TrainSettings
    from costream.training.own import train

    settings = TrainSettings(
        model=values["model"],
        weights=values["weights"],
        data=values["data"],
        group=values["group"],
        output=output,
        validation=values["validation"],
        steps=values["steps"],
        scratch=values["scratch"],
        seed=values["seed"],
        rate_hz=values["fps"],
        layout=values["layout"],
        columns=values["columns"],
        threads=values["threads"],
        overwrite=values["overwrite"],
        verbosity=-1 if values["quiet"] else values["verbose"],
    )
    return int(train(settings))
