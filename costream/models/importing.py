"""Import of foreign checkpoints: format detection, conversion, and the model card."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from costream.core.errors import ModelError, UsageError
from costream.core.label_sets import KNOWN, Labels, custom_labels, read_labels
from costream.core.records import AUDIO_TAGGING, OBJECT_DETECTION
from costream.models.audio import vggish
from costream.models.eventful.vivit import importer as vivit
from costream.models.oad import torch_encoder, tsn
from costream.models.oad.encoder_blocks import apply_stack_setting
from costream.models.skeleton.ensemble import combine
from costream.nn.video3d.sizes import TASK
from costream.weights_io.card import Card
from costream.weights_io.foreign import ForeignCheckpoint, read_foreign
from costream.weights_io.import_settings import CARD_KEYS, KEYS, ImportSettings
from costream.weights_io.importer import IMPORTERS
from costream.weights_io.store import published
from costream.weights_io.tensor_rules import ImportedFrontend, ImportedNetwork

log = logging.getLogger("costream")
# Data sets by task and number of classes.
_DATA_SETS = {
    ("online action detection", 22): "thumos14",
    ("online action detection", 31): "tvseries",
    ("online action detection", 107): "fineaction",
    ("sound classification", 10): "gtzan",
    (OBJECT_DETECTION, 80): "coco",
    (OBJECT_DETECTION, 30): "imagenet-vid",
    (AUDIO_TAGGING, 521): "audioset-521",
    (TASK, 400): "kinetics-400",
    (TASK, 600): "kinetics-600",
    (TASK, 97): "epic-verbs",
    ("skeleton action recognition", 60): "ntu-60",
    ("skeleton action recognition", 120): "ntu-120",
    ("skeleton action recognition", 400): "kinetics-400",
}
# Streams of skeletons by the names of published files: a word of it, or pyskl's whole name.
_STREAMS = {
    "bone_motion": r"\bbone[- ]motion\b|^bm$",
    "joint_motion": r"\bjoint[- ]motion\b|^jm$",
    "bone": r"\bbone\b|^b$",
    "joint": r"\bjoint\b|^j$",
}
FILE_NAME = "the name of the file"


def import_files(
    paths: Sequence[Path], name: str, config: Mapping[str, str], form: str | None = None
) -> tuple[Card, dict[str, Tensor]]:
    """Import the checkpoints of a model called ``name``; return card and tensors.

    The tensors have the names of a weight file (``network.*``, ``frontend.*``). ``config`` supplies
    the settings that the checkpoints lack (``config.KEYS``). ``form`` is a key of
    ``base.IMPORTERS``; None: detected from the tensor names.

    Files of VGGish and TSN are recognised by their tensor names at any position; those of TSN
    alone become a model that outputs features. The file of a ViViT may be followed by its tuned
    temporal encoder. Skeleton checkpoints of several streams (joints, bones, ...) become one model:
    ``stream`` of ``config`` names one stream per checkpoint, in order and separated by commas, and
    ``fusion`` optionally a weight for each.

    Settings that neither ``config`` nor the checkpoints have are the published ones, which is
    logged and noted in the card's limits. Raises ModelError when a file cannot be read or does not
    fit, with all settings that remain undetermined, and when files do not belong together;
    UsageError for a wrong ``config``.
    """
    foreign = [read_foreign(path) for path in paths]
    video = [part for part in foreign if tsn.detect(part.tensors)]
    audio = [part for part in foreign if vggish.detect(part.tensors)]
    networks = vivit.overlay([p for p in foreign if not any(p is q for q in (*video, *audio))])
    if video and audio:
        raise ModelError("a network uses either TSN or VGGish, not both", where=paths[0])
    if video and not networks:
        return _extractor(video, name, config)
    if not networks:
        raise ModelError(
            "VGGish alone is not a model",
            where=paths[0],
            hint="also give the checkpoint of a network that uses its features",
        )
    own = {key: value for key, value in config.items() if key not in vggish.KEYS}
    if not audio and len(own) < len(config):
        raise UsageError("--config embedding: no checkpoint of VGGish is given")
    if len(networks) > 1:
        card, tensors = _import_streams(networks, name, own, form)
    else:
        card, tensors = _import_one(networks[0], name, own, form)
    parts, frontend = (audio, "VGGish") if audio else (video, "TSN")
    if not parts:
        return card, tensors
    path = networks[0].path
    if not card.labels:
        raise ModelError(f"an encoder without a classifier cannot use {frontend}", where=path)
    front = _frontend(parts, ImportSettings(config, KEYS), card.rate_hz)
    wanted = card.arguments.get("input_width")
    if wanted != front.token_width:
        message = f"takes {wanted} features, but {frontend} has {front.token_width}"
        raise ModelError(message, where=path)
    card = dataclasses.replace(
        card,
        frontend=front.name,
        frontend_arguments=front.arguments,
        description=f"{card.description.removesuffix('.')}; {front.description}.",
    )
    return card, tensors | _named("frontend", front.tensors)


def import_module_encoder(
    module: nn.TransformerEncoder, name: str, window: int, stack: str = "exact"
) -> tuple[Card, dict[str, Tensor]]:
    """Return card and tensors of a ``torch.nn.TransformerEncoder`` in memory.

    Heads, activation and norm order are read from the module; ``window`` is its length in tokens.
    ``stack``: "exact", or "deepcot" for a separate window in each block, see ``nn.deepcot``. Raises
    ModelError for an unsupported encoder (another activation).
    """
    settings = ImportSettings({"stack": stack}, ("stack",))
    imported = apply_stack_setting(torch_encoder.convert_module(module, window), settings)
    card = _card(name, imported, settings, IMPORTERS.get("torch").info["summary"])
    return card, _named("network", imported.tensors)


def _frontend(
    parts: Sequence[ForeignCheckpoint], settings: ImportSettings, rate_hz: float
) -> ImportedFrontend:
    read = tsn.read_frontend if tsn.detect(parts[0].tensors) else vggish.read_frontend
    try:
        return read(parts, settings, rate_hz)
    except ModelError as error:
        raise ModelError(str(error), where=parts[0].path) from error


def _extractor(
    parts: Sequence[ForeignCheckpoint], name: str, config: Mapping[str, str]
) -> tuple[Card, dict[str, Tensor]]:
    """Return a model that consists of a frontend only."""
    settings = ImportSettings(config, ("rate_hz", "trained_on", "licence"))
    rate_hz = settings.get("rate_hz") or tsn.RATE_HZ
    front = _frontend(parts, settings, rate_hz)
    card = Card(
        name=name,
        task="features",
        architecture="features",
        arguments={"embed_dim": front.token_width},
        labels=(),
        rate_hz=rate_hz,
        frontend=front.name,
        frontend_arguments=front.arguments,
        description=f"Features of video: {front.description}.",
        paper=tsn.PAPER,
        trained_on=settings.get("trained_on") or "",
        licence=settings.get("licence") or "",
    )
    return card, _named("frontend", front.tensors)


def _import_one(
    foreign: ForeignCheckpoint, name: str, config: Mapping[str, str], form: str | None
) -> tuple[Card, dict[str, Tensor]]:
    imported, settings, summary = _convert(foreign, config, form)
    try:
        card = _card(name, imported, settings, summary)
    except ModelError as error:
        _settle(settings, foreign.path, str(error))
        raise
    _settle(settings, foreign.path)
    return _with_notes(card, settings), _named("network", imported.tensors)


def _import_streams(
    parts: Sequence[ForeignCheckpoint], name: str, config: Mapping[str, str], form: str | None
) -> tuple[Card, dict[str, Tensor]]:
    own = ImportSettings(config, KEYS)
    shared = {key: value for key, value in config.items() if key not in ("stream", "fusion")}
    named = [_stream_of(part.path) for part in parts]
    if all(named):
        own.suggest({"stream": named}, FILE_NAME)
    streams, fusion = own.require("stream", ["joint"] * len(parts)), own.get("fusion")
    for key, values in (("stream", streams), ("fusion", fusion)):
        if values is not None and len(values) != len(parts):
            raise UsageError(f"--config {key}: {len(values)} given for {len(parts)} checkpoints")
    done = [
        _convert(part, {**shared, "stream": stream}, form)
        for part, stream in zip(parts, streams, strict=True)
    ]
    for part, (_, settings, _) in zip(parts, done, strict=True):
        _settle(settings, part.path)
    _settle(own, parts[0].path)
    imported = combine([part for part, _, _ in done], fusion)
    summaries = dict.fromkeys(summary for _, _, summary in done)
    card = _card(name, imported, done[0][1], "; ".join(summaries))
    _settle(done[0][1], parts[0].path)
    return _with_notes(card, own, done[0][1]), _named("network", imported.tensors)


def _convert(
    foreign: ForeignCheckpoint, config: Mapping[str, str], form: str | None
) -> tuple[ImportedNetwork, ImportSettings, str]:
    """Return network, settings and the format's summary."""
    entry = IMPORTERS.get(form or _detect(foreign))
    settings = ImportSettings(config, (*entry.info["keys"], *CARD_KEYS))
    _suggest_by_name(settings, foreign.path)
    try:
        network: ImportedNetwork = IMPORTERS.load(entry.name)(foreign, settings)
        imported = apply_stack_setting(network, settings)
    except ModelError as error:
        _settle(settings, foreign.path, str(error))
        raise
    return imported, settings, entry.info["summary"]


def _suggest_by_name(settings: ImportSettings, path: Path) -> None:
    """Suggest what the name of a file says: a published checkpoint, or a stream of skeletons."""
    for entry in published().values():
        files = [part.file for part in (entry, *entry.also)]
        if path.name in files and entry.config:
            values = {key: KEYS[key][0](text) for key, text in entry.config.items()}
            settings.suggest(values, f"the published settings of {entry.name}")
    stream = _stream_of(path)
    if stream:
        settings.suggest({"stream": [stream]}, FILE_NAME)


def _stream_of(path: Path) -> str | None:
    name = path.stem.lower().replace("_", "-")
    return next((stream for stream, words in _STREAMS.items() if re.search(words, name)), None)


def _settle(settings: ImportSettings, path: Path, error: str = "") -> None:
    try:
        settings.settle(error)
    except ModelError as found:
        raise ModelError(str(found), where=path) from found


def _with_notes(card: Card, *settings: ImportSettings) -> Card:
    """Log the settings that were taken from elsewhere, and note them in the limits of a card."""
    if card.labels == _numbered(len(card.labels)) and card.labels:
        log.warning(
            "the classes have no names and are called %s to %s; name them with --config"
            " labels=FILE.txt, one name a line",
            *(card.labels[0], card.labels[-1]),
        )
    notes = []
    for origin, pairs in {k: v for each in settings for k, v in each.taken.items()}.items():
        log.info("took %s from %s; override with --config KEY=VALUE", pairs, origin)
        notes.append(f"Not in the checkpoint, taken from {origin}: {pairs}.")
    return dataclasses.replace(card, limits=" ".join(filter(None, (card.limits, *notes))))


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


def _named(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}


def _card(name: str, imported: ImportedNetwork, settings: ImportSettings, summary: str) -> Card:
    common: dict[str, Any] = {
        "name": name,
        "architecture": imported.architecture,
        "arguments": imported.arguments,
        "description": f"Imported from a checkpoint of: {summary}.",
        "paper": imported.paper,
        "limits": imported.limits,
        "trained_on": settings.get("trained_on") or "",
        "licence": settings.get("licence") or "",
    }
    if imported.num_classes is None:
        for key in ("labels", "background"):
            if settings.get(key) is not None:
                raise ModelError(f"--config {key}: not applicable, this encoder has no classifier")
        # An encoder is used from Python; a rate of 0 means unknown.
        return Card(task="encoder", labels=(), rate_hz=settings.get("rate_hz") or 0.0, **common)
    labels = _labels(imported, settings)
    background = settings.get("background") or labels.background
    if background is not None and background not in labels.names:
        settings.reject(f"background={background} is not one of the labels")
    usual = labels.rate_hz or imported.rate_hz
    named = not settings.suggested("labels") and settings.get("rate_hz") == labels.rate_hz
    if named and settings.suggested("rate_hz"):
        settings.forget("rate_hz")  # the given labels say the same
    rate_hz = settings.get("rate_hz") or usual or settings.require("rate_hz")
    return Card(
        task=imported.task,
        labels=labels.names,
        background=background,
        rate_hz=rate_hz,
        delay_s=imported.delay_steps / rate_hz,
        frontend=imported.frontend,
        frontend_arguments=imported.frontend_arguments,
        timeline=imported.timeline,
        **common,
    )


def _numbered(classes: int) -> tuple[str, ...]:
    return tuple(f"class {k}" for k in range(classes))


def _labels(imported: ImportedNetwork, settings: ImportSettings) -> Labels:
    if settings.get("labels") is None and imported.labels is not None:
        labels = custom_labels(imported.labels, "class_index of the checkpoint")
        return next((known for known in KNOWN.values() if known.names == labels.names), labels)
    data_set = _DATA_SETS.get((imported.task, imported.num_classes or 0))
    if data_set is not None:
        settings.suggest({"labels": data_set})
    given: str | None = settings.get("labels")
    if given is None:
        return Labels(_numbered(imported.num_classes or 0), None, None)
    labels = read_labels(given)
    if len(labels.names) != imported.num_classes:
        settings.reject(
            f"labels={given} has {len(labels.names)} names, the checkpoint"
            f" {imported.num_classes} classes"
        )
    return labels
