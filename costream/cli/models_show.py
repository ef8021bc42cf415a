"""``costream models list`` and ``show``: list the models, and print the card of one."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from costream.cli.click_command import Command
from costream.cli.models_fetch import (
    known_labels,
    labels_text,
)
from costream.cli.printing import print_json
from costream.core.errors import CostreamError, printable, say
from costream.core.formatting import counted, listed, saving, si
from costream.core.records import POSE_ESTIMATION
from costream.models.catalogue import (
    ModelEntry,
    find_weights,
    kind_of,
    list_models,
    read_model,
    split_name,
    split_size,
    with_size,
)
from costream.options.click_options import json_option
from costream.options.completers import model_names
from costream.weights_io.card import Card, card_schema
from costream.weights_io.file import STEP_SUFFIX, all_tensors, card_in, read_card, read_header
from costream.weights_io.licences import UNKNOWN, AllowedLicence, is_allowed, licence_class
from costream.weights_io.store import INSTALL_RESEARCH, published

_WIDTH = 80  # columns of the output


@dataclass(frozen=True)
class ListedModel:
    """A model of ``models list --json``."""

    name: str
    summary: str
    origin: str | None  # environment, cache, shipped, research or published; null: an architecture
    path: str | None  # of the weights; null: they are not here
    licence_class: str | None  # free, non-commercial, research or unknown; null: no weights

    @classmethod
    def of(cls, entry: ModelEntry) -> ListedModel:
        """Return an entry of the list, with its licence class."""
        path = None if entry.path is None else str(entry.path)
        return cls(entry.name, entry.summary, entry.origin, path, _licence_class(entry))


def shown_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of ``models show --json``: a card, and its file."""
    schema = card_schema()
    card = schema["$defs"]["Card"]
    card["properties"] = {
        "path": {"type": "string", "description": "of the weights"},
        "tensors_sha256": {"type": "string"},
        "parameters": {"type": ["integer", "null"], "description": "null: a step in ONNX"},
        **card["properties"],
    }
    card["required"] = ["path", "tensors_sha256", "parameters", *card["required"]]
    return schema


@click.command("list", cls=Command, short_help="List the models whose weights are here.")
@click.option("--all", "every", is_flag=True, help="Also list models whose weights are not here.")
@click.option(
    "--time",
    "timed",
    is_flag=True,
    help="Time a step of each model on this machine (takes seconds each).",
)
@click.option(
    "--licence",
    type=click.Choice(get_args(AllowedLicence)),
    default="any",
    show_default=True,
    help="List only models whose weights this licence class allows; non-commercial: and free ones.",
)
@json_option
def list_command(every: bool, timed: bool, licence: AllowedLicence, as_json: bool) -> None:
    """List the models whose weights are here, by what they find.

    Each line shows the licence class (free for any use, non-commercial, research), the size of the
    weights, the cost of a step (multiplications, or with --time milliseconds on this machine) and
    the labels. --all adds models whose weights are published
    (costream models fetch NAME downloads them) and architectures without weights. --json prints
    all of them, with their files.
    """
    entries = [e for e in list_models() if is_allowed(_licence_class(e) or UNKNOWN, licence)]
    if as_json:
        print_json([dataclasses.asdict(ListedModel.of(entry)) for entry in entries])
        return
    shown = [entry for entry in entries if every or entry.path is not None]
    groups: dict[str, list[tuple[str, ...]]] = {}
    for entry in shown:
        kind, *row = _listed(entry, timed)
        groups.setdefault(kind, []).append((entry.name, *row))
    rows = [row for group in groups.values() for row in group]
    left = [max(len(row[k]) for row in rows) for k in range(4)] if rows else []
    last = (_RESEARCH, _NOT_HERE)
    for kind in sorted(groups, key=lambda kind: last.index(kind) if kind in last else -1):
        click.echo(kind)
        for name, use, weight, cost, text in groups[kind]:
            start = (
                f"  {name:<{left[0]}}  {use:<{left[1]}}  {weight:>{left[2]}}  {cost:>{left[3]}}  "
            )
            _print_wrapped(start, text, 1)
    absent = [e for e in entries if e.origin == "research" and e.path is None and not every]
    if absent:
        say(f"{len(absent)} more are for research: {INSTALL_RESEARCH}")
    rest = len(entries) - len(shown) - len(absent)
    if rest:
        say(f"{rest} more without weights here: costream models list --all")


_RESEARCH = f"For research: {INSTALL_RESEARCH}"
_NOT_HERE = "Networks without weights here"


def _listed(entry: ModelEntry, timed: bool) -> tuple[str, ...]:
    """Return heading, licence class, size of the weights, cost of a step, and labels."""
    if entry.path is None:
        if entry.origin == "research":
            return _RESEARCH, _licence_class(entry) or "", "", "", entry.summary
        online = published().get(entry.name) if entry.origin else None
        if online is None:
            return _NOT_HERE, "", "", "", entry.summary
        how = "by hand" if online.by_hand else "to fetch"
        use, size = online.licence_class or UNKNOWN, f"{online.total_megabytes:g} MB"
        return kind_of(online.task), use, size, how, known_labels(online)
    try:
        card = read_card(entry.path)
    except CostreamError as error:
        return "Damaged", "", "", "", str(error)
    macs = card.costs.get("macs")
    cost = si(macs, "MAC") if macs else ""
    if timed:
        cost = _step_time(entry.path)
    shown = [label for label in card.events if card.timeline.threshold_of(label) < 1]  # may open
    text = labels_text(shown) if card.labels else card.description or card.task
    weight = f"{entry.path.stat().st_size / 1e6:.1f} MB"
    return kind_of(card.task, card.frontend), licence_class(card), weight, cost, text


def _licence_class(entry: ModelEntry) -> str | None:
    """Return the licence class of a model; None: there are no weights, or they are damaged."""
    try:
        if entry.path is not None:
            return licence_class(read_card(entry.path))
    except CostreamError:
        return None
    if entry.origin == "research":
        return "research"
    online = published().get(entry.name) if entry.origin else None
    return None if online is None else online.licence_class or UNKNOWN


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


@click.command("show", cls=Command, short_help="Show the card of a model.")
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
        card = with_size(card, split_size(model)[1])
        if file.suffix != STEP_SUFFIX:  # whose weights are among the constants of its graph
            numbers = sum(math.prod(info.shape) for info in all_tensors(file).values())
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
_TAKES = dict.fromkeys(("joints", "skeleton-features"), "skeletons")
_TAKES |= {"audiovisual": "video, sound"}
_TAKES |= dict.fromkeys(("text", "tokenizer"), "text")
_TAKES |= dict.fromkeys(
    ("audio", "efficientat", "efficientat-mel", "joined-audio", "vggish", "logmel"), "sound"
)


def _summary(card: Card) -> Iterator[tuple[str, str]]:
    """Yield the facts that users need first, as keys and texts."""
    yield "model", f"{card.name}: {card.description or card.task}"
    if card.labels:
        background = f" and {card.background}" if card.background else ""
        yield "knows", f"{counted(len(card.events), 'label')}{background}: {listed(card.events)}"
    if card.limits:
        yield "limits", card.limits
    yield "licence", ": ".join(filter(None, (licence_class(card), card.licence)))
    if card.task == POSE_ESTIMATION:
        what = "crops of video, one a person"
        if card.architecture == "movenet":
            what = "video, six persons at once (--pose movenet)"
        yield "takes", f"{what}, for models of skeletons"
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
