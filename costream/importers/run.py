"""Import of foreign checkpoints: format detection, conversion, and the model card."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from costream.checkpoints.card import Card
from costream.errors import ModelError, UsageError
from costream.importers import torch_encoder, tsn, vggish, vivit
from costream.importers.base import IMPORTERS
from costream.importers.config import CARD_KEYS, KEYS, ImportSettings
from costream.importers.encoder_blocks import apply_stack_setting
from costream.importers.pickles import ForeignCheckpoint, read_foreign
from costream.importers.rules import ImportedNetwork
from costream.importers.skeleton.ensemble import combine
from costream.labels.names import KNOWN, Labels, custom_labels, read_labels


def import_files(
    paths: Sequence[Path], name: str, config: Mapping[str, str], form: str | None = None
) -> tuple[Card, dict[str, Tensor]]:
    """Import the checkpoints of one model: a network or its streams, and its frontend.

    Files of VGGish and TSN are recognised by their tensor names at any position; those of TSN
    alone become a model that outputs features. The file of a ViViT may be followed by its tuned
    temporal encoder. Otherwise as ``import_checkpoint`` and ``import_streams``. Raises what they
    raise, and ModelError when a network does not fit its frontend's output, or a temporal encoder
    belongs to another network.
    """
    foreign = [read_foreign(path) for path in paths]
    pictures = [part for part in foreign if tsn.detect(part.tensors)]
    sound = [part for part in foreign if vggish.detect(part.tensors)]
    fronts = [p for p in foreign if vggish.detect(p.tensors) or tsn.detect(p.tensors)]
    others = vivit.overlay([p for p in foreign if all(p is not front for front in fronts)])
    if pictures and sound:
        raise ModelError("a network uses either TSN or VGGish, not both", where=paths[0])
    if pictures and not others:
        return _extractor(pictures, name, config)
    if not others:
        raise ModelError(
            "VGGish alone is not a model",
            where=paths[0],
            hint="also give the checkpoint of a network that uses its features",
        )
    own = {key: value for key, value in config.items() if key not in vggish.KEYS}
    if not sound and len(own) < len(config):
        raise UsageError("--config embedding: no checkpoint of VGGish is given")
    if len(others) > 1:
        card, tensors = _import_streams(others, name, own, form)
    else:
        card, tensors = _import_one(others[0], name, own, form)
    parts, importer = (sound, vggish) if sound else (pictures, tsn)
    if not parts:
        return card, tensors
    what = "VGGish" if sound else "TSN"
    if not card.labels:
        raise ModelError(f"an encoder without a classifier cannot use {what}", where=others[0].path)
    try:
        front = importer.read_frontend(parts, ImportSettings(config, KEYS), card.rate_hz)
    except ModelError as error:
        raise ModelError(str(error), where=parts[0].path) from error
    wanted = card.arguments.get("input_width")
    if wanted != front.token_width:
        raise ModelError(
            f"takes {wanted} features, but {what} has {front.token_width}", where=others[0].path
        )
    card = dataclasses.replace(
        card,
        frontend=front.name,
        frontend_arguments=front.arguments,
        description=f"{card.description.removesuffix('.')}; {front.what}.",
    )
    return card, tensors | {f"frontend.{name}": value for name, value in front.tensors.items()}


def _extractor(
    parts: Sequence[ForeignCheckpoint], name: str, config: Mapping[str, str]
) -> tuple[Card, dict[str, Tensor]]:
    """Return a model that consists of a frontend only."""
    settings = ImportSettings(config, ("rate_hz", "trained_on", "licence"))
    rate_hz = settings.get("rate_hz") or tsn.RATE_HZ
    try:
        front = tsn.read_frontend(parts, settings, rate_hz)
    except ModelError as error:
        raise ModelError(str(error), where=parts[0].path) from error
    card = Card(
        name=name,
        task="features",
        architecture="features",
        arguments={"embed_dim": front.token_width},
        labels=(),
        rate_hz=rate_hz,
        frontend=front.name,
        frontend_arguments=front.arguments,
        description=f"Features of video: {front.what}.",
        paper=tsn.PAPER,
        trained_on=settings.get("trained_on") or "",
        licence=settings.get("licence") or "",
    )
    return card, {f"frontend.{name}": value for name, value in front.tensors.items()}


def import_checkpoint(
    path: Path, name: str, config: Mapping[str, str], form: str | None = None
) -> tuple[Card, dict[str, Tensor]]:
    """Import a foreign checkpoint as a model called ``name``; return card and tensors.

    ``form`` is a key of ``base.IMPORTERS``; None: detected from the tensor names. ``config``
    supplies the settings that the checkpoint lacks (``config.KEYS``). The tensors have the names of
    a weight file (``network.*``). Raises ModelError when the file cannot be read, does not fit or
    leaves a setting undetermined, UsageError for a wrong ``config``.
    """
    return _import_one(read_foreign(path), name, config, form)


def _import_one(
    foreign: ForeignCheckpoint, name: str, config: Mapping[str, str], form: str | None
) -> tuple[Card, dict[str, Tensor]]:
    imported, settings, form = _convert(foreign, config, form)
    try:
        return _card(name, imported, settings, _summary(form)), _named(imported)
    except ModelError as error:
        raise ModelError(str(error), where=foreign.path) from error


def import_streams(
    paths: Sequence[Path], name: str, config: Mapping[str, str], form: str | None = None
) -> tuple[Card, dict[str, Tensor]]:
    """Import skeleton checkpoints of several streams (joints, bones, ...) as one model.

    ``config`` as for ``import_checkpoint``; its ``stream`` names one stream per checkpoint, in
    order and separated by commas, and ``fusion`` optionally a weight for each. Raises UsageError
    when their number differs from that of the checkpoints, otherwise as ``import_checkpoint``.
    """
    return _import_streams([read_foreign(path) for path in paths], name, config, form)


def _import_streams(
    parts: Sequence[ForeignCheckpoint], name: str, config: Mapping[str, str], form: str | None
) -> tuple[Card, dict[str, Tensor]]:
    own = ImportSettings(config, KEYS)
    shared = {key: value for key, value in config.items() if key not in ("stream", "fusion")}
    streams, fusion = own.require("stream"), own.get("fusion")
    for key, values in (("stream", streams), ("fusion", fusion)):
        if values is not None and len(values) != len(parts):
            raise UsageError(f"--config {key}: {len(values)} given for {len(parts)} checkpoints")
    done = [
        _convert(part, {**shared, "stream": stream}, form)
        for part, stream in zip(parts, streams, strict=True)
    ]
    summaries = {_summary(form): None for _, _, form in done}
    imported = combine([part for part, _, _ in done], fusion)
    return _card(name, imported, done[0][1], "; ".join(summaries)), _named(imported)


def _convert(
    foreign: ForeignCheckpoint, config: Mapping[str, str], form: str | None
) -> tuple[ImportedNetwork, ImportSettings, str]:
    form = form or _detect(foreign)
    entry = IMPORTERS.get(form)
    settings = ImportSettings(config, (*entry.info["keys"], *CARD_KEYS))
    try:
        imported: ImportedNetwork = apply_stack_setting(
            IMPORTERS.load(form)(foreign, settings), settings
        )
    except ModelError as error:
        raise ModelError(str(error), where=foreign.path) from error
    return imported, settings, form


def import_module_encoder(
    module: nn.TransformerEncoder, name: str, window: int, stack: str = "exact"
) -> tuple[Card, dict[str, Tensor]]:
    """Return card and tensors of a ``torch.nn.TransformerEncoder`` in memory.

    Heads, activation and norm order are read from the module; ``window`` is its length in tokens.
    ``stack``: "exact", or "deepcot" for a separate window in each block, see ``nn.deep``. Raises
    ModelError for an unsupported encoder (another activation).
    """
    settings = ImportSettings({"stack": stack}, ("stack",))
    imported = apply_stack_setting(torch_encoder.convert_module(module, window), settings)
    return _card(name, imported, ImportSettings({}, CARD_KEYS), _summary("torch")), _named(imported)


def _detect(foreign: ForeignCheckpoint) -> str:
    for name in IMPORTERS:
        if IMPORTERS.get(name).info["detect"](foreign.tensors):
            return name
    some = ", ".join(list(foreign.tensors)[:4])
    raise ModelError(
        f"the tensor names ({some}, ...) match no known format",
        where=foreign.path,
        hint=f"known formats: {', '.join(IMPORTERS)}",
    )


def _summary(form: str) -> str:
    return str(IMPORTERS.entries()[form].info["summary"])


def _named(imported: ImportedNetwork) -> dict[str, Tensor]:
    return {f"network.{name}": tensor for name, tensor in imported.tensors.items()}


def _card(name: str, imported: ImportedNetwork, config: ImportSettings, summary: str) -> Card:
    common: dict[str, Any] = {
        "name": name,
        "architecture": imported.architecture,
        "arguments": imported.arguments,
        "description": f"Imported from a checkpoint of: {summary}.",
        "paper": imported.paper,
        "limits": imported.limits,
        "trained_on": config.get("trained_on") or "",
        "licence": config.get("licence") or "",
    }
    if imported.num_classes is None:
        for key in ("labels", "background"):
            if config.get(key) is not None:
                raise ModelError(f"--config {key}: not applicable, this encoder has no classifier")
        # An encoder is used from Python; a rate of 0 means unknown.
        return Card(task="encoder", labels=(), rate_hz=config.get("rate_hz") or 0.0, **common)
    labels = _labels(imported, config)
    background = config.get("background") or labels.background
    if background is not None and background not in labels.names:
        raise ModelError(f"background={background} is not one of the labels")
    told = labels.rate_hz or imported.rate_hz
    rate_hz = config.get("rate_hz") or told or config.require("rate_hz")
    return Card(
        task=imported.task,
        labels=labels.names,
        background=background,
        rate_hz=rate_hz,
        delay_s=imported.delay_steps / rate_hz,
        frontend=imported.frontend,
        frontend_arguments=imported.frontend_arguments,
        **common,
    )


def _labels(imported: ImportedNetwork, config: ImportSettings) -> Labels:
    if config.get("labels") is None and imported.labels is not None:
        labels = custom_labels(imported.labels, "class_index of the checkpoint")
        return next((known for known in KNOWN.values() if known.names == labels.names), labels)
    said: str = config.require("labels")
    labels = read_labels(said)
    if len(labels.names) != imported.num_classes:
        raise ModelError(
            f"labels={said} has {len(labels.names)} names, the checkpoint"
            f" {imported.num_classes} classes"
        )
    return labels
