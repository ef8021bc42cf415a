"""Models by name: the list, search for weights, loading.

Weights are searched for in this order: the path given, $COSTREAM_WEIGHTS (a file or a folder), the
user cache, the weights shipped with the package, those of the package of research weights. Only
``load_model`` needs torch.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from costream.core.errors import ModelError, UsageError
from costream.core.formatting import suggest_names
from costream.core.records import (
    AUDIO_TAGGING,
    IMAGE_CLASSIFICATION,
    OBJECT_DETECTION,
    POSE_ESTIMATION,
)
from costream.core.settings import AUTO
from costream.core.spelling import stored_path
from costream.models.auto import DETECTOR, SOUND, auto_model, expanded, video_models
from costream.models.spec import has_any_size, model_summaries
from costream.weights_io.file import STEP_SUFFIX, SUFFIX, Weights, read_card, read_weights
from costream.weights_io.licences import AllowedLicence, is_allowed, licence_class, licence_use
from costream.weights_io.store import (
    INSTALL_RESEARCH,
    RESEARCH_WEIGHTS,
    VARIABLE,
    cache_folder,
    is_shipped,
    published,
    weight_folders,
)

if TYPE_CHECKING:
    from costream.models.eventful.classifier import ActionModel
    from costream.models.eventful.detector import ObjectModel
    from costream.models.objects.model import DetectorModel
    from costream.models.persons import PersonsModel
    from costream.models.streaming import StreamingModel
    from costream.models.with_audio import HearingModel
    from costream.weights_io.card import Card

    LoadedModel: TypeAlias = (
        StreamingModel | ObjectModel | DetectorModel | ActionModel | HearingModel | PersonsModel
    )

log = logging.getLogger("costream")
FAST = "fast"
_LARGEST = 4096  # pixels of a side of a picture


@dataclass(frozen=True)
class ModelEntry:
    """One line of ``costream models list``."""

    name: str
    summary: str
    # "environment", "cache", "shipped" or "research" (the two packages); without a path:
    # "research" (to be installed), "published" (to be fetched) or None
    origin: str | None
    path: Path | None


def kind_of(task: str, frontend: str | None = None) -> str:
    """Return the heading under which models of a task, and with a frontend, are listed."""
    if task == OBJECT_DETECTION:
        return "Objects in video"
    if task in (AUDIO_TAGGING, "sound classification"):
        return "Sounds"
    if task == IMAGE_CLASSIFICATION:
        return "What pictures and video show"
    if frontend == "joints" or task.startswith("skeleton"):
        return "Actions of persons, from skeletons or video"
    if task == POSE_ESTIMATION:
        return "Joints of persons in video, for models of skeletons"
    return "Features" if task in ("features", "encoder") else "Actions in video"


def more_to_fetch(card: Card, path: Path) -> str:
    """Return a line about a published model with more classes than shipped weights, or ''.

    It is shown once for each kind of model: an empty file in the user's cache remembers it. Without
    a writable cache it is never shown.
    """
    kind = kind_of(card.task, card.frontend)
    larger = [
        entry
        for entry in published().values()
        if entry.task and kind_of(entry.task) == kind and entry.classes > len(card.labels)
    ]
    if not is_shipped(path) or not larger:
        return ""
    name, size = larger[0].name, f"{larger[0].total_megabytes:g} MB"
    marker = cache_folder().parent / "hints" / name
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(exist_ok=False)
    except OSError:
        return ""
    return f"A model with more classes is available: {name} (costream models fetch {name}, {size})."


def list_models() -> list[ModelEntry]:
    """Return the listed models, other installed weights, and models that can be fetched.

    Raises ModelError if the table of published checkpoints is damaged.
    """
    found: dict[str, tuple[str, Path]] = {}
    for origin, folder in weight_folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.name.removesuffix(SUFFIX), (origin, path))
    entries, listed = [], model_summaries()
    absent = {name: text for name, text in RESEARCH_WEIGHTS.items() if name not in found}
    for name in dict.fromkeys((*listed, *absent)):
        place = found.pop(name, ("research" if name in absent else None, None))
        entries.append(ModelEntry(name, listed.get(name) or absent[name], *place))
    for name, (origin, path) in sorted(found.items()):
        entries.append(ModelEntry(name, _describe(path), origin, path))
    here = {entry.name for entry in entries if entry.path is not None}
    entries += [
        ModelEntry(name, entry.source, "published", None)
        for name, entry in published().items()
        if entry.config is not None and name not in here
    ]
    return entries


def split_name(name: str) -> tuple[str, str]:
    """Return a model's name and the adapter file after a plus, or ''."""
    base, plus, adapter = name.partition("+")
    if not plus or not base or not adapter.endswith(SUFFIX) or Path(name).exists():
        return name, ""
    return base, adapter


def split_size(name: str) -> tuple[str, int | None]:
    """Return a model's name and the pixels after an @, or None."""
    found = re.fullmatch(r"(.+)@(\d{1,5})", name)
    if found is None or Path(name).exists():
        return name, None
    return found[1], int(found[2])


def with_size(card: Card, size: int | None) -> Card:
    """Return the card of a model whose pictures are fitted into a square of ``size`` pixels.

    None: the card itself. Raises ModelError for models whose size is fixed, and for other than
    multiples of their patches.
    """
    if size is None:
        return card
    name = f"{card.name}@{size}"
    if not has_any_size(card.architecture):
        raise ModelError("the size of its pictures is fixed", where=name, hint=f"use {card.name}")
    patch = card.frontend_arguments["patch"]
    if not 0 < size <= _LARGEST or size % patch:
        what = f"the size must be a multiple of {patch} up to {_LARGEST}"
        raise ModelError(what, where=name, hint=f"{card.name}@{_nearest(size, patch)}")
    arguments = {**card.frontend_arguments, "box": [size, size]}
    return replace(card, frontend_arguments=arguments, costs={})  # of the card's size


def _nearest(size: int, patch: int) -> int:
    return min(max(patch, round(size / patch) * patch), _LARGEST // patch * patch)


def find_weights(name: str, weights: str | os.PathLike[str] | None = None) -> Path:
    """Return the weight file of a model.

    ``name`` is a model's name or the path of a weight file; ``weights`` a file, or a folder that
    holds ``NAME.safetensors``. For ``BASE+ADAPTER.safetensors`` the adapter's file is returned, for
    ``NAME@PIXELS`` that of the name.
    Raises ModelError if there is none, with advice or similar names; UsageError if both ``name``
    and ``weights`` are paths.
    """
    name, _ = split_size(name)
    base, adapter = split_name(name)
    if adapter:
        find_weights(base, weights)
        return _existing(Path(adapter).expanduser(), "there is no such adapter file")
    if _is_path(name):
        if weights is not None:
            raise UsageError(f"both a weight file ({name}) and --weights are given")
        return _existing(Path(name).expanduser(), "there is no such weight file")
    if weights is not None:
        return _file_in(Path(weights).expanduser(), name)
    variable = os.environ.get(VARIABLE)
    if variable:
        path = _existing(Path(variable).expanduser(), f"the path in ${VARIABLE} does not exist")
        if path.is_file():
            return path
    for _, folder in weight_folders():
        path = Path(stored_path(str(folder / f"{name}{SUFFIX}")))
        if path.is_file():
            return path
    raise _missing(name)


def load_model(
    name: str | os.PathLike[str] = "cooadtr",
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "float32",
    licence: AllowedLicence | None = None,
    provider: str | None = None,
) -> LoadedModel:
    """Load a model, ready to step.

    ``name`` and ``weights`` as for ``find_weights``; ``auto``: see ``auto_model``; ``NAME@PIXELS``:
    see ``with_size``. Several names, separated by commas, are combined: models with the same
    frontend, or a model of pictures and models of sound, which step together on a source that has
    both. ``device``: auto, cpu, cuda, cuda:N or mps; ``dtype``: float32, float64, bfloat16, float16
    or fast (``fastest_dtype``); for token-gated models see ``ObjectModel`` and ``ActionModel``. A
    step in ONNX runs in ONNX Runtime by ``provider``, see ``execution_provider``. ``licence``: as
    for ``check_licence``. Raises ModelError if weights are missing, damaged, or do not fit the
    architecture on their card, or the device is missing; UsageError as ``check_licence``, and for
    a ``provider`` without a step in ONNX.
    """
    from costream.models.devices import find_device

    name = os.fspath(name)
    if name == AUTO:
        _check_provider(provider, name)
        chosen = video_models(licence, weights)
        return auto_model(*(load_model(part, weights, device, dtype) for part in chosen))
    names = [part.strip() for part in name.split(",") if part.strip()]
    if len(names) > 1:
        _check_folder(weights)
        parts = [load_model(part, weights, device, dtype, licence, provider) for part in names]
        return _combined(parts, name)
    check_licence(name, weights, licence)
    path = find_weights(name, weights)
    find_device(device)  # report a wrong device before reading a large file
    if path.suffix == STEP_SUFFIX:
        if split_size(name)[1] is not None:
            hint = "export NAME@PIXELS"
            raise ModelError("the size of an exported step is fixed", where=name, hint=hint)
        from costream.models.onnx_step import load_step

        return load_step(path, device, "float32" if dtype == FAST else dtype, provider)
    _check_provider(provider, name)
    stored = read_model(name, weights)
    if stored.card.untrained:
        log.warning("%s has random weights: its output is meaningless", stored.card.name)
    if dtype == FAST:
        from costream.models.fast_precision import fastest_dtype

        dtype = fastest_dtype(stored.card, device, partial(_runnable, stored, path, device))
    return _runnable(stored, path, device, dtype)


def _check_provider(provider: str | None, name: str) -> None:
    """Raise UsageError for a provider of ONNX Runtime and a model that runs in PyTorch."""
    if provider is not None:
        what = f"{name} does not run in ONNX Runtime"
        hint = "export it: costream models export NAME -o step.onnx"
        raise UsageError(what, where="--provider", hint=hint)


def check_licence(
    name: str, weights: str | os.PathLike[str] | None, allowed: AllowedLicence | None
) -> None:
    """Raise UsageError unless the licence class of a model's weights is allowed.

    ``name`` and ``weights`` as for ``find_weights``, or several names separated by commas; all
    weights are allowed if ``allowed`` is "any" or None. Raises ModelError as ``find_weights``.
    """
    if allowed in (None, "any"):
        return
    for part in filter(None, map(str.strip, expanded(name).split(","))):
        card = read_card(find_weights(part, weights))
        if not is_allowed(licence_class(card), allowed):
            raise UsageError(
                f"--licence {allowed} refuses {part} ({licence_use(card)})",
                hint=free_alternative(kind_of(card.task, card.frontend)),
            )


def free_alternative(kind: str) -> str:
    """Return which free model has a similar task, or which can be fetched; ``kind``: a heading."""
    for entry in list_models():
        if entry.path is None or not is_shipped(entry.path):
            continue
        card = read_card(entry.path)
        if licence_class(card) == "free" and card.labels and kind_of(card.task) == kind:
            return f"free for any use: {entry.name}"
    for name, online in published().items():
        fits = online.task and not online.by_hand and kind_of(online.task) == kind
        if fits and online.licence_class == "free":
            return f"free for any use: {name} (costream models fetch {name})"
    return "no free model with a similar task is known"


def _runnable(
    stored: Weights, path: Path, device: str, dtype: str
) -> StreamingModel | ObjectModel | ActionModel:
    """Return the model of these weights. Raises ModelError, naming ``path``, if they do not fit."""
    from costream.models.build import build, model_class

    try:
        network, frontend = build(stored.card, stored.tensors)
    except ModelError as error:
        raise ModelError(str(error), where=path) from error
    model: StreamingModel | ObjectModel | ActionModel = model_class(stored.card)(
        stored.card, network, frontend, weights_sha256=stored.sha256, device=device, dtype=dtype
    )
    try:
        state = model.init_state()
        if stored.card.compression.get("pruned"):  # only a step shows whether its widths fit
            from costream.models.verify import random_items

            model.step(random_items(model, 1), state)  # type: ignore[arg-type]
    except Exception as error:  # a network with sizes from a file may raise anything
        what = f"invalid arguments in the model card ({type(error).__name__}: {error})"
        raise ModelError(what, where=path) from error
    return model


def _combined(
    models: Sequence[LoadedModel], name: str
) -> StreamingModel | HearingModel | PersonsModel:
    """Return one model that steps all of these. Raises ModelError if they cannot be combined."""
    from costream.models.joint import combine_models
    from costream.models.persons import with_persons
    from costream.models.streaming import StreamingModel
    from costream.models.with_audio import BesideModel, with_sound

    sounds = [m for m in models if isinstance(m, StreamingModel) and m.info.sound is not None]
    others = [model for model in models if model not in sounds]
    if not others:
        return combine_models(sounds)
    sound = combine_models(sounds) if len(sounds) > 1 else next(iter(sounds), None)
    if len(others) == 2 and sum(model.info.card.finds_objects for model in others) == 1:
        detector, person = sorted(others, key=lambda model: not model.info.card.finds_objects)
        return with_persons(detector if sound is None else with_sound(detector, sound), person)
    if len(others) == 1 and sound is not None:
        if others[0].info.persons == 1:
            return with_persons(BesideModel(sound), others[0])
        return with_sound(others[0], sound)
    what = " and ".join(model.info.card.name for model in others)
    hint = "run them one after another; models of sound may be added to one of pictures or"
    hint += " skeletons, and a detector to one of pictures"
    raise ModelError(f"{what} cannot be combined", where=name, hint=hint)


def read_model(name: str, weights: str | os.PathLike[str] | None = None) -> Weights:
    """Return card and tensors of a model, or of a base with its adapter fused in.

    Raises ModelError as ``find_weights`` and ``read_weights`` do, and for an adapter without its
    base.
    """
    stored = read_weights(find_weights(name, weights))
    name, size = split_size(name)
    stored = replace(stored, card=with_size(stored.card, size))
    base, adapter = split_name(name)
    if adapter:
        try:
            from costream.models.adapters import with_adapter

            return with_adapter(read_whole(base, weights), stored)
        except ModelError as error:
            raise ModelError(str(error), where=adapter) from error
    if "base" in stored.card.compression:
        what = "is an adapter, which needs its base"
        raise ModelError(what, where=name, hint=f"give both: BASE+{name}")
    return stored


def read_whole(name: str, weights: str | os.PathLike[str] | None = None) -> Weights:
    """Return card and tensors of a model to start another one from, int8 tensors as float32.

    Raises ModelError as ``read_model`` does, and for a pruned network.
    """
    stored = read_model(name, weights)
    facts = stored.card.compression
    if facts.get("pruned"):
        raise ModelError("is pruned", where=name, hint="start from the model that was pruned")
    if "int8" not in facts:
        return stored
    from costream.models.int8 import to_float

    card = replace(stored.card, compression={k: v for k, v in facts.items() if k != "int8"})
    return replace(stored, card=card, tensors=to_float(stored.tensors))


def _is_path(name: str) -> bool:
    return name.endswith((SUFFIX, STEP_SUFFIX)) or os.sep in name or "/" in name


def _check_folder(weights: str | os.PathLike[str] | None) -> None:
    """Raise UsageError if a single weight file is given for several models."""
    if weights is not None and not Path(weights).expanduser().is_dir():
        raise UsageError("several models need a folder of weights, not a file", where=weights)


def _existing(path: Path, what: str) -> Path:
    path = Path(stored_path(os.fspath(path)))
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        denied = isinstance(error, PermissionError)
        raise ModelError("no permission to read it" if denied else what, where=path) from error
    return path


def _file_in(path: Path, name: str) -> Path:
    """Return the weight file ``path``, or that of a model in the folder ``path``."""
    path = _existing(path, "the path given by --weights does not exist")
    if not path.is_dir():
        return path
    inside = Path(stored_path(str(path / f"{name}{SUFFIX}")))
    if inside.is_file():
        return inside
    others = ", ".join(sorted(p.name for p in path.glob(f"*{SUFFIX}"))) or "no weight files"
    raise ModelError(f"this folder has no {inside.name}; it has {others}", where=path)


def _missing(name: str) -> ModelError:
    if name == AUTO:
        hint = f"use {DETECTOR}@SIZE,{SOUND}"
        return ModelError(f"the size of {AUTO} is fixed", hint=hint)
    if name in RESEARCH_WEIGHTS:
        return ModelError(
            f"{name} is in the package of research weights: {INSTALL_RESEARCH}",
            hint=f"its licence: {RESEARCH_WEIGHTS[name]}",
        )
    if name in model_summaries():
        return ModelError(
            f"no weights for {name} here",
            hint=f"import a checkpoint (costream models import FILE --name {name}), give --weights"
            f" FILE, or train from new weights (costream models init {name} -o FILE)",
        )
    entry = published().get(name)
    if entry is not None and entry.config is None:
        return ModelError(f"{name} is not a model by itself", hint=f"it {entry.note}")
    if entry is not None:
        return ModelError(f"no weights for {name} here", hint=f"costream models fetch {name}")
    if Path(name).is_file():
        return ModelError("neither a model nor weights (*.safetensors, *.onnx)", where=name)
    names = [entry.name for entry in list_models()]
    return ModelError(f"unknown model {name!r}", hint=suggest_names(name, names))


def _describe(path: Path) -> str:
    try:
        card = read_card(path)
    except ModelError as error:
        return f"cannot be used: {error}"
    return card.description or card.task
