"""``costream models import``: convert foreign checkpoints to weight files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from costream.checkpoints.file import SUFFIX
from costream.errors import ModelError, UsageError
from costream.importers.base import FORMATS
from costream.importers.config import KEYS, ImportSettings, read_pairs
from costream.models.registry import cache_folder


def _keys() -> str:
    head = "Keys of --config (checked against the tensors where these determine the value):"
    lines = [f"{key:<20} {what} ({kind})" for key, (_, kind, what) in KEYS.items()]
    return "\b\n" + "\n".join([head, *lines])


@click.command("import", epilog=_keys())
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as", "form", type=click.Choice(list(FORMATS)), help="Checkpoint format.  [default: detected]"
)
@click.option("--name", metavar="NAME", help="Name of the model.  [default: that of the file]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file, not to the cache.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting that the checkpoint does not contain; repeatable.",
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
    """Convert a foreign checkpoint; prints the written file.

    Without -o it is written to the user cache, where '-m NAME' finds it. No code in the
    checkpoint is executed: pickles may contain only arrays and plain containers.

    Skeleton networks of several streams become one model: give their checkpoints, and name their
    streams in this order (--config stream=joint,bone). An audio network is combined with its
    VGGish: give that checkpoint too, and its PCA file if the network was trained with it. A video
    network is combined with its TSN: give MMAction2's checkpoints of RGB and flow too. Those
    alone become a model for 'costream features'. ViViT takes the temporal encoder from a second
    checkpoint, tuned for fewer tokens.
    """
    config = read_pairs(pairs)
    ImportSettings(config, KEYS)  # reports a typo before torch is imported
    for checkpoint in checkpoints:
        if not checkpoint.is_file():
            raise ModelError("there is no such file", where=checkpoint)
    if len(checkpoints) > 1 and not (name or output):
        raise UsageError("several checkpoints become one model: give its --name")
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
    """Write the weight file of checkpoints and describe it. Raises as ``import_files``."""
    from costream.checkpoints.file import write_weights
    from costream.importers.run import import_files
    from costream.models.build import build

    card, tensors = import_files(checkpoints, name, config, form)
    build(card, tensors)  # checks that they fit before anything is written
    write_weights(target, card, tensors)
    click.echo(f"{name}: {card.description} See: costream models show {target}", err=True)
