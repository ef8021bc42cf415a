"""Models by name: what there is, where its weights are, and how to load them.

Weights are looked for in this order: the path given, $COSTREAM_WEIGHTS (a file or a folder), the
user cache, the weights that come with the package. Nothing here needs torch but ``load_model``.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import costream
from costream.checkpoints.published import FILE, Published, read_published
from costream.checkpoints.weights_file import SUFFIX, read_card, read_weights
from costream.errors import ModelError, UsageError

if TYPE_CHECKING:
    from costream.models.actions import ActionModel
    from costream.models.objects import ObjectModel
    from costream.models.streaming import StreamingModel

# architecture of a card -> "module:Class"; its arguments are in the card
ARCHITECTURES = {
    "cooadtr": "costream.models.oad:CoOadTR",
    "cotrans": "costream.models.audio:CoTrans",
    "conystrom": "costream.models.conystrom:CoNystrom",
    "conystrom-audio": "costream.models.conystrom:CoNystromAudio",
    "oadtr": "costream.models.oadtr:OadTR",
    "deepcot": "costream.models.deepcot:DeepCoT",
    "miniroad": "costream.models.miniroad:MiniRoad",
    "features": "costream.models.features:Features",
    "encoder": "costream.nn.encoder:Encoder",
    "deepcot-encoder": "costream.nn.deep:DeepEncoder",
    "costgcn": "costream.models.skeleton:SkeletonNet",
    "coagcn": "costream.models.skeleton:SkeletonNet",
    "costr": "costream.models.skeleton:SkeletonNet",
    "stgcn": "costream.models.skeleton_window:WindowSkeletonNet",
    "agcn": "costream.models.skeleton_window:WindowSkeletonNet",
    "str": "costream.models.skeleton_window:WindowSkeletonNet",
    "vitdet": "costream.models.vitdet:ViTDet",
    "cox3d": "costream.models.video:VideoNet",
    "coslow": "costream.models.video:VideoNet",
    "coi3d": "costream.models.video:VideoNet",
    "x3d": "costream.models.video_window:WindowVideoNet",
    "slow": "costream.models.video_window:WindowVideoNet",
    "i3d": "costream.models.video_window:WindowVideoNet",
    "vivit": "costream.models.vivit:ViViT",
    "skeleton-ensemble": "costream.models.skeleton_ensemble:SkeletonEnsemble",
}
# those that compute as many tokens as they are told
GATED = ("vitdet", "vivit")
# name the user types -> what it is
MODELS = {
    "cooadtr": "online action detection, continual transformer of one block (default)",
    "cooadtr-b2": "online action detection, continual transformer of two blocks",
    "oadtr": "online action detection over a sliding window, with anticipation",
    "miniroad": "online action detection, recurrent network",
    "cotrans": "music genres in sound, continual transformer",
    "cosounds": "sounds of the environment, continual transformer",
    "conystrom": "online action detection, continual Nyström attention",
    "conystrom-audio": "sound, continual Nyström attention",
    "deepcot": "stack of any depth, each block with a window of its own",
    "costgcn": "skeleton actions, continual graph convolutions",
    "costgcn-s1": "skeleton actions, CoST-GCN*: strides 1, no padding",
    "coagcn": "skeleton actions, continual adaptive graphs",
    "coagcn-s1": "skeleton actions, CoAGCN*: strides 1, no padding",
    "costr": "skeleton actions, continual spatial attention",
    "costr-s1": "skeleton actions, CoS-TR*: strides 1, no padding",
    "cox3d-s": "actions in video, continual X3D of 160 x 160 pixels at 5 frames a second",
    "cox3d-m": "actions in video, continual X3D of 224 x 224 pixels at 6 frames a second",
    "cox3d-l": "actions in video, continual X3D of 312 x 312 pixels at 6 frames a second",
    "coslow": "actions in video, continual Slow, a 3D ResNet-50",
    "coi3d": "actions in video, continual I3D, a 3D ResNet-50",
    "eventful-vitdet": "objects in video, a transformer that computes what has changed",
    "eventful-vivit": "actions in video, a transformer that computes what has changed",
}
VARIABLE = "COSTREAM_WEIGHTS"
log = logging.getLogger("costream")


@dataclass(frozen=True)
class ModelEntry:
    """One line of ``costream models list``."""

    name: str
    summary: str
    origin: str | None  # "environment", "cache", "shipped"; "published": to be fetched; None
    path: Path | None


def list_models() -> list[ModelEntry]:
    """Give the known models, all others whose weights are here, and those that can be fetched.

    Raises ModelError when the table of published checkpoints is damaged.
    """
    found: dict[str, tuple[str, Path]] = {}
    for origin, folder in _folders():
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.name.removesuffix(SUFFIX), (origin, path))
    entries = [
        ModelEntry(name, text, *found.pop(name, (None, None))) for name, text in MODELS.items()
    ]
    for name, (origin, path) in sorted(found.items()):
        entries.append(ModelEntry(name, _describe(path), origin, path))
    here = {entry.name for entry in entries if entry.path is not None}
    entries += [
        ModelEntry(name, entry.source, "published", None)
        for name, entry in published().items()
        if entry.config is not None and name not in here
    ]
    return entries


def find_weights(name: str, weights: str | os.PathLike[str] | None = None) -> Path:
    """Give the weight file of a model.

    ``name`` is a model's name or the path of a weight file; ``weights`` a file, or a folder that
    holds ``NAME.safetensors``. Raises ModelError when there is none: it says what to do, or which
    names are close; UsageError when ``name`` and ``weights`` both are paths.
    """
    if _is_path(name):
        if weights is not None:
            raise UsageError(f"both a weight file ({name}) and --weights are given")
        return _existing(Path(name).expanduser(), "there is no such weight file")
    if weights is not None:
        return _given(Path(weights).expanduser(), name)
    variable = os.environ.get(VARIABLE)
    if variable:
        path = _existing(Path(variable).expanduser(), f"${VARIABLE} names what is not there")
        if path.is_file():
            return path
    for _, folder in _folders():
        path = folder / f"{name}{SUFFIX}"
        if path.is_file():
            return path
    raise _missing(name)


def load_model(
    name: str = "cooadtr",
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "float32",
) -> StreamingModel | ObjectModel | ActionModel:
    """Load a model, ready to step.

    ``name`` and ``weights`` as for ``find_weights``; several names, divided by commas, are models
    on the same frontend, which then run side by side. ``device``: auto, cpu, cuda, cuda:N or mps;
    ``dtype``: float32, float64, bfloat16 or float16; for token-gated models see
    ``models.objects.ObjectModel`` and ``models.actions.ActionModel``. Raises ModelError when
    weights or device are not there, damaged, or do not fit the architecture that their card names.
    """
    from costream.models.build import build
    from costream.models.kinds import model_class
    from costream.models.streaming import StreamingModel, find_device

    names = [part.strip() for part in name.split(",") if part.strip()]
    if len(names) > 1:
        from costream.models.joint import join

        _check_folder(weights)
        models = [load_model(part, weights, device, dtype) for part in names]
        beside = [model for model in models if isinstance(model, StreamingModel)]
        if len(beside) < len(models):
            raise ModelError("a model that computes what has changed runs alone", where=name)
        return join(beside)
    path = find_weights(name, weights)
    find_device(device)  # a wrong device is told before a large file is read
    stored = read_weights(path)
    if stored.card.untrained:
        log.warning("%s has random weights: what it says means nothing", stored.card.name)
    try:
        network, frontend = build(stored.card, stored.tensors)
    except ModelError as error:
        raise ModelError(str(error), where=path) from error
    model: StreamingModel | ObjectModel | ActionModel = model_class(stored.card)(
        stored.card, network, frontend, weights_sha256=stored.sha256, device=device, dtype=dtype
    )
    return model


def cache_folder() -> Path:
    """Give the folder of imported and fetched weights, by platform convention."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return base / "costream" / "cache" / "weights"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "costream" / "weights"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the convention: only if absolute
    return (given if given.is_absolute() else Path.home() / ".cache") / "costream" / "weights"


def shipped_folder() -> Path:
    """Give the folder of the weights that come with costream."""
    package = Path(costream.__file__).parent
    inside = package / "weights"  # a wheel; a clone has them beside the package
    return inside if inside.is_dir() else package.parent / "weights"


def downloads_folder() -> Path:
    """Give the folder with a folder for each checkpoint that is, or was, being downloaded."""
    return cache_folder().parent / "downloads"


def published() -> dict[str, Published]:
    """Give the published checkpoints that this installation knows of, by name."""
    table = shipped_folder() / FILE
    return read_published(table) if table.is_file() else {}


def nearest(name: str, names: Iterable[str]) -> str:
    """Give a question or a list that helps whoever has typed a name that is not there."""
    known = list(names)
    close = difflib.get_close_matches(name, known, 3, 0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"


def _folders() -> Iterator[tuple[str, Path]]:
    variable = os.environ.get(VARIABLE)
    if variable and Path(variable).expanduser().is_dir():
        yield "environment", Path(variable).expanduser()
    yield "cache", cache_folder()
    yield "shipped", shipped_folder()


def _is_path(name: str) -> bool:
    return name.endswith(SUFFIX) or os.sep in name or "/" in name


def _check_folder(weights: str | os.PathLike[str] | None) -> None:
    """Raise UsageError for one weight file that several models should come from."""
    if weights is not None and not Path(weights).expanduser().is_dir():
        raise UsageError("several models, but one weight file", where=weights)


def _existing(path: Path, what: str) -> Path:
    if not path.exists():
        raise ModelError(what, where=path)
    return path


def _given(path: Path, name: str) -> Path:
    _existing(path, "--weights names what is not there")
    if not path.is_dir():
        return path
    inside = path / f"{name}{SUFFIX}"
    if inside.is_file():
        return inside
    others = ", ".join(sorted(p.name for p in path.glob(f"*{SUFFIX}"))) or "no weight files"
    raise ModelError(f"this folder has no {inside.name}; it has {others}", where=path)


def _missing(name: str) -> ModelError:
    if name in MODELS:
        return ModelError(
            f"no weights for {name} here",
            hint=f"import a checkpoint (costream models import FILE --name {name}) or give"
            " --weights FILE",
        )
    entry = published().get(name)
    if entry is not None and entry.config is None:
        return ModelError(f"{name} is no model by itself", hint=f"it {entry.note}")
    if entry is not None:
        return ModelError(f"no weights for {name} here", hint=f"costream models fetch {name}")
    names = [entry.name for entry in list_models()]
    return ModelError(f"unknown model {name!r}", hint=nearest(name, names))


def _describe(path: Path) -> str:
    try:
        card = read_card(path)
    except ModelError as error:
        return f"cannot be used: {error}"
    return card.description or card.task
