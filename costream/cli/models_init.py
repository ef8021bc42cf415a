"""``costream models init``: write weight files with random weights, marked as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from costream.cli.click_command import Command
from costream.cli.printing import check_new_file, check_weight_file
from costream.core.errors import UsageError, say
from costream.core.formatting import print_path
from costream.models.spec import architectures
from costream.weights_io.file import SUFFIX


@click.command(
    "init",
    cls=Command,
    short_help="Write a weight file with random weights.",
    epilog=f"Architectures: {', '.join(architectures())}.",
)
@click.argument("architecture")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The weight file.  [default: ARCHITECTURE-random.safetensors]",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Override an argument of the network (default: its paper's), rate_hz, or frontend.NAME;"
    " repeatable.",
)
@click.option(
    "--frontend",
    metavar="NAME|MODEL[+...]",
    help="Frontend for video or audio: a kind, which then also has random weights, or a model or"
    " weight file, whose trained frontend is used; VIDEO+SOUND for both.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace an existing file.")
def init_command(
    architecture: str,
    output: Path | None,
    pairs: tuple[str, ...],
    frontend: str | None,
    seed: int,
    overwrite: bool,
) -> None:
    """Write a weight file with random weights, in the sizes of the network's paper; print it.

    Use it to measure costs, for experiments, or to start a training. Its predictions are
    meaningless: the labels are "random 0", "random 1", ..., and the results are marked. The same
    seed gives the same weights.

    \b
    costream models init cooadtr --set depth=2 --set window=32
    costream models init oadtr --frontend cooadtr -o mine.safetensors
    costream models init cooadtr --frontend cooadtr+cotrans -o with-sound.safetensors
    costream train mine.safetensors --data recordings/ --labels corrected/
    """
    target = output or Path(f"{architecture}-random{SUFFIX}")
    check_weight_file(target)
    check_new_file(target, overwrite=overwrite)
    settings = _settings(pairs)
    from costream.models.build import save_model
    from costream.models.random_init import random_model

    card, network, front = random_model(architecture, target.stem, settings, frontend, seed)
    save_model(target, card, network, front)
    say(f"{card.name}: {card.description} See: costream models show {target}")
    print_path(target)


def _settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE: numbers, true, false, null and lists as in JSON, anything else as text."""
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name or not text:
            raise UsageError(f"--set {pair}: not name=value")
        if name in out:
            raise UsageError(f"--set {name}: set twice")
        try:
            out[name] = json.loads(text)
        except ValueError:
            out[name] = text
    return out
