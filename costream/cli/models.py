"""``costream models``: commands for models and their weights, one module each."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from costream.cli import SuggestingGroup
from costream.cli.click_command import Command
from costream.cli.click_options import json_option
from costream.cli.completers import model_names
from costream.cli.models_fetch import (
    fetch_command,
    import_command,
    known_labels,
    labels_text,
    path_command,
    remove_command,
)
from costream.cli.printing import check_weight_file, print_json
from costream.core.errors import CostreamError, ExitCode, UsageError, printable, say
from costream.core.formatting import counted, listed, print_path, saving, si
from costream.core.records import POSE_ESTIMATION
from costream.models.catalogue import (
    ModelEntry,
    find_weights,
    kind_of,
    list_models,
    read_model,
    split_name,
)
from costream.models.spec import architectures
from costream.sinks.atomic import check_folder
from costream.weights_io.card import Card
from costream.weights_io.file import STEP_SUFFIX, SUFFIX, card_in, read_card, read_header
from costream.weights_io.store import published

_WIDTH = 80  # columns of the output

# ``costream models init``: write weight files with random weights, marked as such.


def _check_new(target: Path, *, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=target, hint="use -o or --overwrite")


@click.command("init", cls=Command, epilog=f"Architectures: {', '.join(architectures())}.")
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
    _check_new(target, overwrite=overwrite)
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


# ``costream models list`` and ``show``: list the models, and print the card of one.


@click.command("list", cls=Command)
@click.option("--all", "every", is_flag=True, help="Also list models whose weights are not here.")
@click.option(
    "--time",
    "timed",
    is_flag=True,
    help="Time a step of each model on this machine (takes seconds each).",
)
@json_option
def list_command(every: bool, timed: bool, as_json: bool) -> None:
    """List the models whose weights are here, by what they find.

    Each line shows the size of the weights, the cost of a step (multiplications, or with --time
    milliseconds on this machine) and the labels. --all adds models whose weights are published
    (costream models fetch NAME downloads them) and architectures without weights. --json prints
    all of them, with their files.
    """
    entries = list_models()
    if as_json:
        print_json([{**dataclasses.asdict(e), "path": e.path and str(e.path)} for e in entries])
        return
    shown = [entry for entry in entries if every or entry.path is not None]
    groups: dict[str, list[tuple[str, str, str, str]]] = {}
    for entry in shown:
        kind, *row = _listed(entry, timed)
        groups.setdefault(kind, []).append((entry.name, row[0], row[1], row[2]))
    rows = [row for group in groups.values() for row in group]
    left = [max(len(row[k]) for row in rows) for k in range(3)] if rows else []
    for kind, group in sorted(groups.items(), key=lambda pair: pair[0] == _NOT_HERE):
        click.echo(kind)
        for name, weight, cost, text in group:
            start = f"  {name:<{left[0]}}  {weight:>{left[1]}}  {cost:>{left[2]}}  "
            _print_wrapped(start, text, 1)
    rest = len(entries) - len(shown)
    if rest:
        say(f"{rest} more without weights here: costream models list --all")


_NOT_HERE = "Networks without weights here"


def _listed(entry: ModelEntry, timed: bool) -> tuple[str, str, str, str]:
    """Return heading, size of the weights, cost of a step, and labels."""
    if entry.path is None:
        online = published().get(entry.name) if entry.origin else None
        if online is None:
            return _NOT_HERE, "", "", entry.summary
        how = "by hand" if online.by_hand else "to fetch"
        return kind_of(online.task), f"{online.total_megabytes:g} MB", how, known_labels(online)
    try:
        card = read_card(entry.path)
    except CostreamError as error:
        return "Damaged", "", "", str(error)
    macs = card.costs.get("macs")
    cost = si(macs, "MAC") if macs else ""
    if timed:
        cost = _step_time(entry.path)
    shown = [label for label in card.events if card.timeline.threshold_of(label) < 1]  # may open
    text = labels_text(shown) if card.labels else card.description or card.task
    weight = f"{entry.path.stat().st_size / 1e6:.1f} MB"
    return kind_of(card.task, card.frontend), weight, cost, text


def _step_time(path: Path) -> str:
    from costream.models.verify import step_ms
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch()
    try:
        ms = step_ms(path)
    except CostreamError:  # "costream models verify" says more
        return "cannot be run"
    return "" if ms is None else f"{ms:.2g} ms" if ms < 10 else f"{ms:.0f} ms"


def _print_wrapped(start: str, text: str, most: int | None = None) -> None:
    """Print a text after ``start``, in lines of _WIDTH columns that are indented like the first.

    If it takes more than ``most`` lines, its last sentences are left out.
    """
    wrapper = textwrap.TextWrapper(_WIDTH, start, " " * len(start))
    lines = wrapper.wrap(text)
    if most is not None and len(lines) > most:
        sentences = re.split(r"(?<=[.]) ", text)
        for count in range(len(sentences) - 1, 0, -1):
            lines = wrapper.wrap(" ".join([*sentences[:count], "..."]))
            if len(lines) <= most:
                break
        if len(lines) > most:  # a first sentence that is too long by itself
            wrapper.max_lines, wrapper.placeholder = most, " ..."
            lines = wrapper.wrap(text)
    click.echo(printable("\n".join(lines) if lines else start.rstrip()))


@click.command("show", cls=Command)
@click.argument("model", metavar="NAME|FILE", shell_complete=model_names)
@click.option(
    "--weights", metavar="PATH", help="Weight file, or a folder that holds NAME.safetensors."
)
@click.option("--full", is_flag=True, help="Show the complete card: metrics, data, settings.")
@json_option
def show_command(model: str, weights: str | None, full: bool, as_json: bool) -> None:
    """Show the labels, limits and licence of a model, its input and its costs."""
    file, numbers = find_weights(model, weights), None
    if split_name(model)[1]:
        path, stored = model, read_model(model, weights)
        card, digest = stored.card, stored.sha256
        numbers = sum(tensor.numel() for tensor in stored.tensors.values())
    else:
        path, header = str(file), read_header(file)
        card, digest = card_in(header, file), header.metadata.get("tensors_sha256", "")
        if file.suffix != STEP_SUFFIX:  # whose weights are among the constants of its graph
            numbers = sum(math.prod(info.shape) for info in header.tensors.values())
    if as_json:
        facts = {"path": path, "tensors_sha256": digest, "parameters": numbers}
        print_json({**facts, **json.loads(card.to_json())})
        return
    if not full:
        what = "a step in ONNX" if numbers is None else f"{si(numbers)} parameters"
        lines = [*_summary(card), ("weights", f"{what}, {path}")]
        width = max(len(key) for key, _ in lines)
        for key, value in lines:
            _print_wrapped(f"{key:<{width}}  ", value, _MAX_LINES.get(key, 1))
        say(f"More: costream models show {model} --full")
        return
    lines = [("file", path), ("sha256", digest)]
    lines += [] if numbers is None else [("parameters", f"{numbers:,}")]
    lines += _describe(card)
    width = max(len(key) for key, _ in lines if " " not in key)
    for key, value in lines:
        click.echo(printable(f"{key:<{width}}  {value}"))


# Most lines of a text in the short form, which has 15 in all.
_MAX_LINES = {"model": 2, "knows": 3, "limits": 4, "licence": 2}

# What a model with a frontend takes; the other frontends are of video.
_TAKES = {"joints": "skeletons", "audiovisual": "video, sound"}
_TAKES |= dict.fromkeys(("text", "tokenizer"), "text")
_TAKES |= dict.fromkeys(("audio", "vggish", "logmel"), "sound")


def _summary(card: Card) -> Iterator[tuple[str, str]]:
    """Yield the facts that users need first, as keys and texts."""
    yield "model", f"{card.name}: {card.description or card.task}"
    if card.labels:
        background = f" and {card.background}" if card.background else ""
        yield "knows", f"{counted(len(card.events), 'label')}{background}: {listed(card.events)}"
    yield from (
        (name, text) for name, text in (("limits", card.limits), ("licence", card.licence)) if text
    )
    if card.task == POSE_ESTIMATION:
        yield "takes", "crops of video, one a person, for models of skeletons"
    else:
        takes = "features" if card.frontend is None else _TAKES.get(card.frontend, "video")
        yield "takes", f"{takes}, {card.rate_hz:g} steps a second"
    macs, dense_macs = card.costs.get("macs"), card.costs.get("dense_macs", 0)
    if macs:
        less = saving(macs, dense_macs)
        dense = f" of {si(dense_macs, 'MAC')} dense ({less})" if less else ""
        ms, machine = card.costs.get("ms"), card.costs.get("machine")
        took = f", {ms:g} ms on {machine.split(',')[0]}" if ms and machine else ""
        yield "step", f"{si(macs, 'MAC')}{dense}{took}"
    scores = card.sample.get("metrics")
    if scores:
        texts = (f"{name.replace('_', ' ')} {value:.3g}" for name, value in scores.items())
        yield "sample", f"{card.sample.get('file')}: {', '.join(texts)}"


def _describe(card: Card) -> Iterable[tuple[str, str]]:
    for field in dataclasses.fields(card):
        value: Any = getattr(card, field.name)
        if value in ("", None, {}, ()):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, dict):
            yield from _leaves(field.name, value)
            continue
        if isinstance(value, tuple):
            value = f"{len(value)}: {', '.join(value)}"
        yield field.name, str(value)


def _leaves(path: str, table: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield a line with the plain values of each nested table, without long lists (see --json)."""
    nested = {k: v for k, v in table.items() if isinstance(v, dict)}
    plain = {k: v for k, v in table.items() if k not in nested and v is not None}
    short = [f"{k}={v}" for k, v in plain.items() if not (isinstance(v, list) and len(v) > 5)]
    if short:
        yield path, ", ".join(short)
    for key, value in nested.items():
        yield from _leaves(f"{path} {key}", value)


# ``costream models compress``: int8 weights.


@click.command("compress", cls=Command)
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
    _check_new(target, overwrite=overwrite)
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


@click.command("export", cls=Command)
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
    help="With the frontend of cooadtr or cosounds: x is a picture or a block of samples.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace an existing file.")
def export_command(model: str, output: Path | None, whole: bool, overwrite: bool) -> None:
    """Write one step of a network for other runtimes; prints the file.

    The state is among its inputs and outputs. Of networks over tokens (cooadtr, cosounds, oadtr,
    deepcot, ...) and of skeleton networks like costgcn. Without --whole the input x is what the
    frontend gives: a token, as 'costream features' writes them, or joints. Opset 20.

    \b
    costream models export cosounds -o step.onnx
    costream models export costgcn -o step.pt2
    """
    card = read_card(find_weights(model))
    target = output or Path(f"{card.name}.onnx")
    check_folder(target.parent)
    _check_new(target, overwrite=overwrite)
    from costream.models.export import export_step

    names = export_step(model, target, whole=whole)
    say(f"inputs: {', '.join(names)}")
    print_path(target)


# ``costream models verify``: check that weight files work as their cards state.


@click.command("verify", cls=Command)
@click.argument("models", nargs=-1, metavar="[NAME|FILE]...", shell_complete=model_names)
@json_option
def verify_command(models: tuple[str, ...], as_json: bool) -> int:
    """Check weight files: checksum, card, tensors, a few steps, and the score on a sample.

    Without a name, check all of them. If the card states a score on a sample that is shipped with
    costream, it is measured again. Exit code 5 if one fails.
    """
    from costream.evaluation.sample import reproduce
    from costream.models.verify import verify
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch()
    rows = []
    for name in models or [e.name for e in list_models() if e.path is not None]:
        path, sample, known, problem = None, None, None, None
        try:
            file = find_weights(name)
            path = name if split_name(name)[1] else str(file)
            digest = verify(path, read_model(path))
            sample = reproduce(path)
            known = _check_published(file)
        except CostreamError as error:
            digest, problem = "", str(error)
        row = {"path": path or name, "ok": problem is None, "sha256": digest}
        rows.append({**row, "sample": sample, "known_input": known, "problem": problem})
    if not rows:
        say("there are no weight files to verify")
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(printable(_line(row)))
    failed = any(not row["ok"] for row in rows)
    return int(ExitCode.MODEL if failed else ExitCode.OK)


def _check_published(path: Path) -> str | None:
    """Run the check of the published checkpoint that a file was fetched from.

    Return its result in words; None for other files. Raises ModelError if it fails.
    """
    from costream.models.verify import check_known_sounds

    card = read_card(path)
    entry = published().get(card.name)
    if entry is None or entry.source != card.trained_on:
        return None
    if not entry.check:
        return "unchecked: its authors give no result for a known input"
    check_known_sounds(path, entry.check)
    return f"as published: {', '.join(entry.check)}"


def _line(row: dict[str, Any]) -> str:
    if not row["ok"]:
        return f"FAIL  {row['problem']}"
    sample = row["sample"]
    if sample is None:
        return f"ok    {row['path']}" + (f"  {row['known_input']}" if row["known_input"] else "")
    if sample["metrics"] is None:
        return f"ok    {row['path']}  sample not checked: {sample['reason']}"
    scores = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in sample["metrics"].items())
    return f"ok    {row['path']}  {sample['file']}: {scores}"


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, show, fetch, import, create and verify models and their weights."""


for _command in (
    *(list_command, show_command, path_command),
    *(fetch_command, import_command, init_command, compress_command, export_command),
    verify_command,
    remove_command,
):
    command.add_command(_command)
