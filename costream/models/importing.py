"""Import of foreign checkpoints: which importer reads each file, and the model they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from costream.core.errors import ModelError, UsageError
from costream.core.registry import Entry
from costream.models.imported_card import imported_card, with_notes
from costream.weights_io.card import Card
from costream.weights_io.foreign import ForeignCheckpoint, read_foreign, without_parts
from costream.weights_io.import_settings import CARD_KEYS, KEYS, TERMS, ImportSettings
from costream.weights_io.importer import FRONTEND_IMPORTERS, IMPORTERS, nearest
from costream.weights_io.store import published
from costream.weights_io.tensor_rules import ImportedFrontend, ImportedNetwork

FILE_NAME = "the name of the file"  # as the origin of a setting


@dataclass(frozen=True)
class _Conversion:
    """A checkpoint converted by its importer."""

    path: Path
    network: ImportedNetwork
    settings: ImportSettings
    importer: Entry[Any]

    @property
    def summary(self) -> str:
        return str(self.importer.info["summary"])


def import_files(
    paths: Sequence[Path], name: str, config: Mapping[str, str], form: str | None = None
) -> tuple[Card, dict[str, Tensor]]:
    """Import the checkpoints of a model called ``name``; return card and tensors.

    The tensors have the names of a weight file (``network.*``, ``frontend.*``). ``config`` supplies
    the settings that the checkpoints lack (``import_settings.KEYS``). ``form`` is a key of
    ``IMPORTERS``; None: detected from the tensor names.

    Files of a frontend (VGGish, TSN) are recognised at any position. TSN without a network becomes
    a model that outputs features. A ViViT may be followed by its tuned temporal encoder. Skeleton
    checkpoints of several streams (joints, bones, ...) become one model: ``stream`` of ``config``
    names one stream per checkpoint, in order and separated by commas, and ``fusion`` optionally a
    weight for each.

    Settings that neither ``config`` nor the checkpoints have are the published ones, which is
    logged and noted in the card's limits. Raises ModelError when a file cannot be read or does not
    fit, with all settings that remain undetermined, and when files do not belong together;
    UsageError for a wrong ``config``.
    """
    weights = ImportSettings(config, KEYS).get("weights")
    config = {key: value for key, value in config.items() if key != "weights"}
    checkpoints = [read_foreign(path, weights) for path in without_parts(paths)]
    fronts: dict[str, list[ForeignCheckpoint]] = {}
    networks: list[ForeignCheckpoint] = []
    for checkpoint in checkpoints:
        kind = _frontend_kind(checkpoint)
        (networks if kind is None else fronts.setdefault(kind, [])).append(checkpoint)
    kinds = [FRONTEND_IMPORTERS.get(kind) for kind in fronts]
    if len(kinds) > 1:
        titles = " or ".join(sorted(str(kind.info["title"]) for kind in kinds))
        raise ModelError(f"a network uses either {titles}, not both", where=paths[0])
    frontend = kinds[0] if kinds else None
    _check_frontend_keys(config, frontend)
    parts = next(iter(fronts.values()), [])
    if frontend is not None and not networks:
        return _import_frontend_alone(frontend, parts, name, config)
    keys_of_frontend = () if frontend is None else frontend.info["keys"]
    config_of_network = {k: v for k, v in config.items() if k not in keys_of_frontend}
    card, tensors = _import_networks(_merged(networks), name, config_of_network, form)
    if frontend is None:
        return card, tensors
    return _with_frontend(frontend, parts, card, tensors, config, networks[0].path)


def _frontend_kind(checkpoint: ForeignCheckpoint) -> str | None:
    """Return the name of the importer of frontends that reads a checkpoint; None: a network."""
    for kind in FRONTEND_IMPORTERS:
        if FRONTEND_IMPORTERS.get(kind).info["detect"](checkpoint.tensors):
            return kind
    return None


def _check_frontend_keys(config: Mapping[str, str], used: Entry[Any] | None) -> None:
    """Raise UsageError for settings of a frontend that is not among the checkpoints."""
    for kind in FRONTEND_IMPORTERS:
        entry = FRONTEND_IMPORTERS.get(kind)
        for key in entry.info["keys"]:
            if key in config and entry is not used:
                title = entry.info["title"]
                raise UsageError(f"--config {key}: no checkpoint of {title} is given")


def _merged(networks: list[ForeignCheckpoint]) -> list[ForeignCheckpoint]:
    """Return the checkpoints of networks, with those in several files merged."""
    for kind in IMPORTERS:
        merge = IMPORTERS.get(kind).info.get("merge")
        if merge is not None and len(networks) > 1:
            networks = merge(networks)
    return networks


def _import_networks(
    networks: Sequence[ForeignCheckpoint],
    name: str,
    config: Mapping[str, str],
    form: str | None,
) -> tuple[Card, dict[str, Tensor]]:
    if len(networks) > 1:
        return _import_streams(networks, name, config, form)
    done = _convert(networks[0], config, form)
    try:
        card = imported_card(name, done.network, done.settings, done.summary)
    except ModelError as error:
        _settle(done.settings, done.path, str(error))
        raise
    _settle(done.settings, done.path)
    tensors = _prefixed("network", done.network.tensors)
    return with_notes(card, done.settings), tensors | _prefixed(
        "frontend", done.network.frontend_tensors
    )


def _import_streams(
    checkpoints: Sequence[ForeignCheckpoint],
    name: str,
    config: Mapping[str, str],
    form: str | None,
) -> tuple[Card, dict[str, Tensor]]:
    """Import networks of one stream each (joints, bones, ...) as one model."""
    settings = ImportSettings(config, KEYS)
    shared = {key: value for key, value in config.items() if key not in ("stream", "fusion")}
    implied = [_settings_of_name(_importer_of(part, form), part.path) for part in checkpoints]
    named = [stream for values in implied for stream in values.get("stream", ())]
    if len(named) == len(checkpoints):
        settings.suggest({"stream": named}, FILE_NAME)
    streams = settings.require("stream", ["joint"] * len(checkpoints))
    fusion = settings.get("fusion")
    for key, values in (("stream", streams), ("fusion", fusion)):
        if values is not None and len(values) != len(checkpoints):
            message = f"{len(values)} given for {len(checkpoints)} checkpoints"
            raise UsageError(f"--config {key}: {message}")
    done = [
        _convert(part, {**shared, "stream": stream}, form)
        for part, stream in zip(checkpoints, streams, strict=True)
    ]
    for each in done:
        _settle(each.settings, each.path)
    first = done[0]
    _settle(settings, first.path)
    network = first.importer.info["combine"]([each.network for each in done], fusion)
    summaries = dict.fromkeys(each.summary for each in done)
    card = imported_card(name, network, first.settings, "; ".join(summaries))
    _settle(first.settings, first.path)
    return with_notes(card, settings, first.settings), _prefixed("network", network.tensors)


def _convert(
    checkpoint: ForeignCheckpoint, config: Mapping[str, str], form: str | None
) -> _Conversion:
    """Return the network of a checkpoint, as its importer converts it."""
    entry, path = _importer_of(checkpoint, form), checkpoint.path
    settings = ImportSettings(config, (*entry.info["keys"], *CARD_KEYS))
    for model in published().values():
        files = [part.file for part in (model, *model.also)]
        if path.name in files and model.config:
            values = {key: KEYS[key][0](text) for key, text in model.config.items()}
            settings.suggest(values, f"the published settings of {model.name}")
    settings.suggest(_settings_of_name(entry, path), FILE_NAME)
    try:
        network: ImportedNetwork = IMPORTERS.load(entry.name)(checkpoint, settings)
    except ModelError as error:
        _settle(settings, path, str(error))
        raise
    return _Conversion(path, network, settings, entry)


def _importer_of(checkpoint: ForeignCheckpoint, form: str | None) -> Entry[Any]:
    """Return the importer called ``form``, or the one that detects a checkpoint."""
    if form is not None:
        return IMPORTERS.get(form)
    for name in IMPORTERS:
        entry = IMPORTERS.get(name)
        if entry.info["detect"](checkpoint.tensors):
            return entry
    some = ", ".join(list(checkpoint.tensors)[:4])
    reason, remedy = nearest(checkpoint.tensors)
    message = f"the tensor names ({some}, ...) match no known format"
    raise ModelError(
        f"{message}; {reason}" if reason else message,
        where=checkpoint.path,
        hint=remedy or f"known formats: {', '.join(IMPORTERS)}",
    )


def _settings_of_name(entry: Entry[Any], path: Path) -> dict[str, Any]:
    """Return the settings that the name of a checkpoint implies."""
    read = entry.info.get("of_file_name")
    return {} if read is None else read(path)


def _import_frontend_alone(
    frontend: Entry[Any], parts: Sequence[ForeignCheckpoint], name: str, config: Mapping[str, str]
) -> tuple[Card, dict[str, Tensor]]:
    """Return a model that consists of a frontend only, and outputs its features."""
    alone = frontend.info.get("alone")
    if alone is None:
        raise ModelError(
            f"{frontend.info['title']} alone is not a model",
            where=parts[0].path,
            hint="also give the checkpoint of a network that uses its features",
        )
    settings = ImportSettings(config, ("rate_hz", *TERMS))
    rate_hz = settings.get("rate_hz") or alone["rate_hz"]
    front = _read_frontend(frontend, parts, settings, rate_hz)
    card = Card(
        name=name,
        task="features",
        architecture="features",
        arguments={"embed_dim": front.token_width},
        labels=(),
        frontend=front.name,
        frontend_arguments=front.arguments,
        description=f"Features of video: {front.description}.",
        **settings.terms,
        **{**alone, "rate_hz": rate_hz},
    )
    return card, _prefixed("frontend", front.tensors)


def _with_frontend(
    frontend: Entry[Any],
    parts: Sequence[ForeignCheckpoint],
    card: Card,
    tensors: dict[str, Tensor],
    config: Mapping[str, str],
    path: Path,
) -> tuple[Card, dict[str, Tensor]]:
    """Return card and tensors of a network with the frontend of these checkpoints before it."""
    title = frontend.info["title"]
    if not card.labels:
        raise ModelError(f"an encoder without a classifier cannot use {title}", where=path)
    front = _read_frontend(frontend, parts, ImportSettings(config, KEYS), card.rate_hz)
    width = card.arguments.get("input_width")
    if width != front.token_width:
        message = f"takes {width} features, but {title} has {front.token_width}"
        raise ModelError(message, where=path)
    card = replace(
        card,
        frontend=front.name,
        frontend_arguments=front.arguments,
        description=f"{card.description.removesuffix('.')}; {front.description}.",
    )
    return card, tensors | _prefixed("frontend", front.tensors)


def _read_frontend(
    frontend: Entry[Any],
    parts: Sequence[ForeignCheckpoint],
    settings: ImportSettings,
    rate_hz: float,
) -> ImportedFrontend:
    try:
        front: ImportedFrontend = FRONTEND_IMPORTERS.load(frontend.name)(parts, settings, rate_hz)
    except ModelError as error:
        raise ModelError(str(error), where=parts[0].path) from error
    return front


def _settle(settings: ImportSettings, path: Path, error: str = "") -> None:
    """Raise one ModelError for ``error`` and everything that is missing or contradictory."""
    try:
        settings.settle(error)
    except ModelError as found:
        raise ModelError(str(found), where=path) from found


def _prefixed(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}.{name}": tensor for name, tensor in tensors.items()}
