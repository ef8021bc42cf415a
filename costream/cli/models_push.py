"""``costream models push``: a folder of a model for the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.cli.printing import check_new_file
from costream.core.errors import UsageError, say
from costream.core.formatting import print_path
from costream.models.catalogue import find_weights, split_name
from costream.options.completers import model_names
from costream.sinks.atomic import check_folder
from costream.weights_io.file import SUFFIX, all_tensors, read_card, read_header, write_whole
from costream.weights_io.hub import hub_card


@click.command("push", cls=Command, short_help="Prepare a folder for the Hugging Face hub.")
@click.argument("model", metavar="NAME|FILE", shell_complete=model_names)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder.  [default: NAME-hub]",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace existing files.")
def push_command(model: str, output: Path | None, overwrite: bool) -> None:
    """Write a folder with the weights and a README.md, the model card of the hub; prints it.

    The card begins with the metadata that the hub reads: licence, task, tags. Nothing is sent: the
    last line is the command that uploads the folder, after 'hf auth login'. Look at the licence
    first: weights for research only stay that when they are shared.

    \b
    costream models push mine.safetensors -o mine-hub
    hf upload ann/mine mine-hub
    costream models fetch hf:ann/mine
    """
    file = find_weights(model)
    if split_name(model)[1] or file.suffix != SUFFIX:
        raise UsageError(f"{model}: only a weight file ({SUFFIX}) can be pushed")
    card = read_card(file)
    if not card.licence:
        say(f"warning: the card of {card.name} states no licence")
    folder = output or Path(f"{card.name}-hub")
    targets = folder / f"{card.name}{SUFFIX}", folder / "README.md"
    check_folder(folder.parent)
    for target in targets:
        check_new_file(target, overwrite=overwrite)
    weights, readme = targets
    if len(all_tensors(file)) == len(read_header(file).tensors):
        write_whole(weights, (file.read_bytes(),))
    else:  # it shares tensors with another file, which would be missing there
        from costream.weights_io.file import read_weights, write_weights

        write_weights(weights, card, read_weights(file).tensors)
    page = file.with_suffix(".md")
    if page.is_file():
        text = page.read_text("utf-8")
    else:
        from costream.training.card_text import card_text

        text = card_text(dataclasses.replace(card, metrics={}), lambda models, labels: [])
    write_whole(readme, (hub_card(card, text).encode(),))
    say(f"upload it: hf upload OWNER/{card.name} {shlex.quote(str(folder))}")
    print_path(folder)
