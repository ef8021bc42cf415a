"""``costream evaluate``: a model's metrics on labelled recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costream.cli.options import config_option, option, positive
from costream.errors import UsageError


@click.command(no_args_is_help=True)
@option("-m", "--model", required=True, metavar="NAME|FILE", help="See 'costream models list'.")
@option("--weights", metavar="PATH", help="Weight file, or a folder that holds NAME.safetensors.")
@option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER|TABLE.csv",
    help="A folder with one folder a class, or a table: file,start,end,label.",
)
@option("--group", metavar="COLUMN", help="Column of what belongs together (person, song).")
@option("--fps", type=float, callback=positive, help="Steps a second the model sees.")
@option("--layout", metavar="NAME|FILE", help="Joint layout of skeletons.")
@option("--columns", metavar="LIST", help="Columns of tables of joints.")
@option(
    "--joined",
    type=click.IntRange(0),
    default=10,
    help="Examples in a stream for the metrics of frames; 0: leave them out.",
)
@option("--seed", type=click.IntRange(0), default=0, help="Of the order in streams.")
@option("--device", default="auto", metavar="auto|cpu|cuda:N|mps", help="Where the model runs.")
@option("--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), default="float32")
@option("--threads", type=click.IntRange(1), default=1, help="Threads of the network.")
@option("--json", "as_json", is_flag=True, default=False, help="Print JSON.")
@option("-v", "--verbose", count=True, default=0, help="Say more; -vv: tracebacks.")
@option("-q", "--quiet", is_flag=True, default=False, help="Errors only on stderr.")
@config_option()
def command(**values: Any) -> int:
    """Measure a model on labelled recordings, run step by step as 'detect' and 'listen' do.

    Top-1 and top-5 accuracy of whole examples by the mean of their steps, their majority vote and
    the last step, and of whole groups (songs) where each is of one class; recall, precision and
    average precision of each class, what is taken for what; average precision of frames where
    examples follow one another in streams.

    \b
    costream evaluate -m moves.safetensors --data test/
    costream evaluate -m costgcn --data test.csv --group person --json
    costream evaluate -m cotrans --data genres.csv --group song
    """
    if values["quiet"] and values["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    from costream.evaluation.evaluate import EvaluateSettings, evaluate

    settings = EvaluateSettings(
        model=values["model"],
        weights=values["weights"],
        data=values["data"],
        group=values["group"],
        rate_hz=values["fps"],
        layout=values["layout"],
        columns=values["columns"],
        joined=values["joined"],
        seed=values["seed"],
        device=values["device"],
        dtype=values["dtype"],
        threads=values["threads"],
        as_json=values["as_json"],
        verbosity=-1 if values["quiet"] else values["verbose"],
    )
    return int(evaluate(settings))
