"""``costream models import``: foreign checkpoints become weight files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from costream.checkpoints.config import KEYS, Config, read_pairs
from costream.checkpoints.formats import FORMATS
from costream.checkpoints.weights_file import SUFFIX
from costream.errors import ModelError, UsageError
from costream.models.registry import cache_folder


def _keys() -> str:
    head = "Keys of --config (what the tensors say already is checked against them):"
    lines = [f"{key:<20} {what} ({kind})" for key, (_, kind, what) in KEYS.items()]
    return "\b\n" + "\n".join([head, *lines])


@click.command("import", epilog=_keys())
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as", "form", type=click.Choice(list(FORMATS)), help="Format; found by itself without."
)
@click.option("--name", metavar="NAME", help="Name of the model (default: that of the file).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write there, not to the cache.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="What the checkpoint does not say; repeatable.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace existing weights.")
def import_command(
    checkpoints: tuple[Path, ...],
    form: str | None,
    name: str | None,
    output: Path | None,
    pairs: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Convert a foreign checkpoint; prints the file it wrote.

    Without -o it goes to the user cache, where '-m NAME' finds it. Nothing in the checkpoint is
    run: pickles may hold arrays and plain containers only.

    Skeleton networks of several streams become one model: give their checkpoints and name their
    streams in this order (--config stream=joint,bone). A network for sound becomes one with its
    VGGish: give that checkpoint too, and its PCA file where the network was trained with it. A
    network for video becomes one with its TSN: give MMAction2's checkpoints of RGB and flow too.
    Those alone become a model for 'costream features'.
    """
    config = read_pairs(pairs)
    Config(config, KEYS)  # a typo is told before torch is imported
    for checkpoint in checkpoints:
        if not checkpoint.is_file():
            raise ModelError("there is no such file", where=checkpoint)
    if len(checkpoints) > 1 and not (name or output):
        raise UsageError("several checkpoints become one model: say its --name")
    name = name or (output or checkpoints[0]).stem
    if not name or set(name) & set("/\\"):
        raise UsageError(f"--name {name!r}: not a file name")
    target = output or cache_folder() / f"{name}{SUFFIX}"
    if target.suffix != SUFFIX:
        raise UsageError(f"-o {target}: the name must end in {SUFFIX}")
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=target, hint="use --name, -o or --overwrite")
    convert(checkpoints, name, config, target, form)
    click.echo(str(target))


def convert(
    checkpoints: Sequence[Path],
    name: str,
    config: Mapping[str, str],
    target: Path,
    form: str | None = None,
) -> None:
    """Write the weight file of checkpoints and say what it is. Raises as ``import_files``."""
    from costream.checkpoints.importing import import_files
    from costream.checkpoints.weights_file import write_weights
    from costream.models.build import build

    card, tensors = import_files(checkpoints, name, config, form)
    build(card, tensors)  # proves that they fit before anything is written
    write_weights(target, card, tensors)
    click.echo(f"{name}: {card.description} See: costream models show {target}", err=True)
