"""``costream models compress`` and ``export``: int8 weights, and a step as ONNX."""

from __future__ import annotations

from pathlib import Path

import click

from costream.cli.click_command import Command
from costream.cli.printing import check_new_file, check_weight_file
from costream.core.errors import say
from costream.core.formatting import print_path
from costream.models.catalogue import (
    find_weights,
    split_name,
)
from costream.options.completers import model_names
from costream.sinks.atomic import check_folder
from costream.weights_io.file import SUFFIX, read_card


@click.command("compress", cls=Command, short_help="Write int8 weights, a quarter of the size.")
@click.argument("model", metavar="NAME|FILE", shell_complete=model_names)
@click.option("--int8", is_flag=True, required=True, help="Weight matrices of eight bits.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The weight file.  [default: NAME-int8.safetensors]",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace an existing file.")
def compress_command(model: str, int8: bool, output: Path | None, overwrite: bool) -> None:
    """Write a weight file with int8 weight matrices, about a quarter of the size; prints it.

    Each row has a scale of its own; what is computed stays float32. Linear layers of half a million
    weights and more, such as those of an encoder of width 1024, stay int8 in memory and take less
    time; smaller ones gain nothing there and become float32 when the file is read. The largest
    difference of a score on the sample of the model, or on noise, goes into the card. Matrices
    that change a score most stay float16, so that it is at most 0.01.

    \b
    costream models compress cooadtr --int8 -o small.safetensors
    costream detect clip.mp4 -m small.safetensors
    """
    card = read_card(find_weights(model))
    target = output or Path(f"{card.name}-int8{SUFFIX}")
    check_weight_file(target)
    check_new_file(target, overwrite=overwrite)
    from costream.evaluation.int8_compression import compress
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch()
    facts = compress(model, target)
    files = [find_weights(name) for name in split_name(model) if name]
    before, after = sum(file.stat().st_size for file in files), target.stat().st_size
    say(
        f"{after / 1e6:.2f} MB of {before / 1e6:.2f}; largest difference of a score"
        f" {facts['score_difference']:.4f} ({facts['measured_on']})"
    )
    print_path(target)


@click.command("export", cls=Command, short_help="Write a step of a network as ONNX.")
@click.argument("model", metavar="NAME|FILE", shell_complete=model_names)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.onnx|FILE.pt2",
    help="The file: ONNX, or with .pt2 a program of torch.export.  [default: NAME.onnx]",
)
@click.option(
    "--whole",
    is_flag=True,
    help="With the frontend of cooadtr, cosounds, encoder: x is a picture or a block of samples.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace an existing file.")
def export_command(model: str, output: Path | None, whole: bool, overwrite: bool) -> None:
    """Write one step of a network for other runtimes; prints the file.

    The state is among its inputs and outputs. Of networks over tokens (cooadtr, cosounds, oadtr,
    deepcot, ...), of skeleton networks like costgcn, of mn04, nanodet, pose and encoder. Without
    --whole the input x is what the frontend gives: a token, as 'costream features' writes them,
    joints, or a normalised picture. Opset 20.

    \b
    costream models export cosounds -o step.onnx
    costream models export costgcn -o step.pt2
    """
    card = read_card(find_weights(model))
    target = output or Path(f"{card.name}.onnx")
    check_folder(target.parent)
    check_new_file(target, overwrite=overwrite)
    from costream.models.export import export_step

    names = export_step(model, target, whole=whole)
    say(f"inputs: {', '.join(names)}")
    print_path(target)
