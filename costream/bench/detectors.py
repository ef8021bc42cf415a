"""``costream bench objects``: gated detectors, the same networks in full, and other runtimes."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from costream.bench.timing import quiet_torch
from costream.core.clock import Tick, resample
from costream.core.errors import ModelError, SourceError, UsageError
from costream.core.processor import processor
from costream.core.records import Box, VideoFrame
from costream.core.tables import Cell, Table
from costream.evaluation.metrics.detection import boxes_alike
from costream.evaluation.object_metrics import detected
from costream.evaluation.table_parts import number
from costream.models.base import StepResult
from costream.models.catalogue import find_weights, load_model
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.detector import ObjectModel, boxes_in_frame
from costream.models.eventful.rf_detr import SIZES, RfDetr
from costream.models.export import export_step
from costream.models.gated import Choice, least_change
from costream.models.importing import import_files
from costream.models.objects.changes import FIRST
from costream.models.objects.model import DetectorModel
from costream.models.onnx_step import onnx_session
from costream.models.random_init import random_model
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source, sniff
from costream.weights_io.file import write_weights

COLUMNS = ("network", "way", "CPU ms a picture", "to full", "operations", "boxes alike")
_TURN = 10  # pictures of a way at a time, so that it finds its own numbers in the cache
_WARM_UP = FIRST + 3  # pictures, until places that have changed are computed


class Seen(NamedTuple):
    """What a way finds in a picture, and its operations; None: not comparable."""

    boxes: tuple[Box, ...] | None
    macs: int | None


Tokens: TypeAlias = Sequence[int | str]
Look: TypeAlias = Callable[[VideoFrame], Seen]


class Way(NamedTuple):
    """A way to compute a network: ``begin`` returns the function for the pictures of a film."""

    name: str
    begin: Callable[[], Look]


@dataclass(frozen=True)
class Films:
    """Films, and which pictures of them are used."""

    paths: Sequence[str]
    rate_hz: float
    duration_s: float


def objects_table(
    films: Films, names: Sequence[str], tokens: Tokens, original: Path | None = None
) -> Table:
    """Compute the pictures of films in turns in each way; return times, operations, agreement.

    ``names``: models or weight files of NanoDet or token-gated detectors. ``tokens``: a way for
    each that a model takes, as in ``Options``. ``original``: checkpoint of RF-DETR, for costream
    and the package rfdetr.

    A time is the mean of the processor time from a picture in memory to its boxes, on one thread.
    Boxes alike: twice the pairs of boxes of one label that overlap by half, of all boxes of this
    way and of the network in full, above the model's threshold. Networks without weights here have
    random ones, and no boxes.

    Raises SourceError for films that cannot be read, ModelError and UsageError for wrong models.
    """
    for path in films.paths:
        if sniff(path) != "video":
            raise SourceError("not a video file", where=path)
    rows: list[tuple[Cell, ...]] = []
    notes = [
        f"{processor()}, one thread, PyTorch {torch.__version__}; {', '.join(films.paths)}: the"
        f" first {films.duration_s:g} s at {films.rate_hz:g} pictures a second, in turns."
    ]
    with quiet_torch(1), tempfile.TemporaryDirectory() as scratch:
        for name in names:
            model, note = _model(name, original, Path(scratch))
            ways, more = _ways(model, name, tokens, original, Path(scratch))
            rows += _rows(model, ways, films)
            notes += [*note, *more]
    return Table("objects", COLUMNS, tuple(rows), tuple(notes))


def _model(
    name: str, original: Path | None, scratch: Path
) -> tuple[DetectorModel | ObjectModel, list[str]]:
    """Return a model, of random weights if its weights are not here, and what has to be noted."""
    notes: list[str] = []
    if original is not None and name in SIZES:
        card, tensors = import_files([original], name, {"labels": "coco"})
        name = str(scratch / f"{name}.safetensors")
        write_weights(Path(name), card, tensors)
    try:
        find_weights(name)
    except ModelError:
        if name not in SIZES:
            raise
        notes.append(
            f"{name}: its weights are not here (costream models fetch {name}), so they are random:"
            " times and operations are those of the network, boxes are not compared."
        )
        card, network, frontend = random_model(name, name, {})
        return _object_model(card, network, frontend), notes
    model = load_model(name, device="cpu")
    if not isinstance(model, (DetectorModel, ObjectModel)):
        raise UsageError(f"{name} does not detect objects", where="-m")
    return model, notes


def _object_model(card: Any, network: Any, frontend: Any) -> ObjectModel:
    from costream.models.eventful.yolos import YolosModel

    return YolosModel(card, network, frontend, device="cpu", dtype="float32")


def _ways(
    model: DetectorModel | ObjectModel,
    name: str,
    tokens: Tokens,
    original: Path | None,
    scratch: Path,
) -> tuple[list[Way], list[str]]:
    """Return the ways to compute a model, the first in full, and why others are left out."""
    if isinstance(model, ObjectModel):
        ways = [
            Way("in full", lambda: _stepping(model, None)),
            *_gated_ways(model, tokens),
        ]
        if not isinstance(model.network, RfDetr):
            return ways, []
        more, notes = _published_ways(model, original, scratch)
        return [*ways, *more], notes
    ways = [
        Way("in full", lambda: _looking(model, tokens="all")),
        Way("places that have changed", lambda: _looking(model)),
        *(
            Way(f"places that have changed by {few}", partial(_looking, model, str(few)))
            for few in tokens
            if least_change(few) is not None
        ),
        Way("the same, looks where something moves", lambda: _looking(model, sparing=True)),
    ]
    try:
        step = scratch / "step.onnx"
        export_step(name, step)
        exported = cast(DetectorModel, load_model(str(step), device="cpu"))
    except ModelError as error:
        return ways, [f"left out: ONNX Runtime ({error})"]
    return [
        *ways,
        Way(_runtime("onnxruntime", "ONNX Runtime"), lambda: _looking(exported)),
    ], []


def _gated_ways(model: ObjectModel, tokens: Tokens) -> Iterator[Way]:
    """Yield the ways to compute a token-gated network, with each policy that it has."""
    for few in tokens:
        if least_change(few) is not None:
            yield Way(f"gates, tokens that have changed by {few}", partial(_stepping, model, few))
            continue
        name = f"gates, {few} of the tokens" if isinstance(few, str) else f"gates, {few} tokens"
        if model.info.learned:
            yield Way(f"{name}, learned", partial(_stepping, model, few))
            name += ", by distance"
        yield Way(name, partial(_stepping, model, few, "distance"))


def _runtime(package: str, name: str) -> str:
    return f"{name} {version(package)}, in full"


def _look(step: Callable[[VideoFrame], StepResult]) -> Look:
    def look(frame: VideoFrame) -> Seen:
        found = step(frame)
        assert found.objects is not None
        return Seen(found.objects[0], found.macs)

    return look


def _stepping(model: ObjectModel, tokens: int | str | None, choice: Choice | None = None) -> Look:
    state = model.init_state(1)
    state.tokens, state.choice = tokens, choice
    return _look(lambda frame: model.step([frame], state))


def _looking(model: DetectorModel, tokens: str | None = None, *, sparing: bool = False) -> Look:
    model.sparing = sparing
    state = model.init_state(1)
    state.tokens = tokens
    return _look(lambda frame: model.step([frame], state))


def _published_ways(
    model: ObjectModel, original: Path | None, scratch: Path
) -> tuple[list[Way], list[str]]:
    """Return an RF-DETR in the package rfdetr, and as it exports it; or why they are left out."""
    card = model.info.card
    side, layers = card.frontend_arguments["short"], card.arguments["layers"]
    size = next((name for name, sizes in SIZES.items() if sizes == (side, layers)), "")
    try:
        with _quiet():
            import rfdetr

            kind = getattr(rfdetr, f"RFDETR{size.rpartition('-')[2].title()}")
            package = kind(pretrain_weights=original and str(original), device="cpu")
    except (ImportError, AttributeError) as error:
        return [], [f"left out: rfdetr ({error}): pip install rfdetr"]
    compared = original is not None
    threshold, numbers = card.timeline.threshold, {name: k for k, name in enumerate(card.labels)}

    def look(frame: VideoFrame) -> Seen:
        found = package.predict(frame.rgb, threshold=threshold)
        names = list(found.data["class_name"])
        known = [k for k, name in enumerate(names) if name in numbers]
        seen = Detections(
            torch.from_numpy(found.xyxy)[known],
            torch.from_numpy(found.confidence)[known],
            torch.tensor([numbers[names[k]] for k in known], dtype=torch.int64),
        )
        boxes = boxes_in_frame(seen, frame, frame.rgb.shape[:2], card.labels)
        return Seen(boxes if compared else None, None)

    ways, notes = [Way(_runtime("rfdetr", "rfdetr"), lambda: look)], []
    try:
        with _quiet():
            file = package.export(output_dir=str(scratch / "rfdetr"), verbose=False)
        runs = onnx_session(Path(file).read_bytes(), 1)
    except (ImportError, ModelError) as error:
        notes.append(f"left out: ONNX Runtime ({error}): pip install 'rfdetr[onnx]' onnxruntime")
        return ways, notes
    (x,) = runs.get_inputs()

    def look_exported(frame: VideoFrame) -> Seen:
        _, pictures = model.prepare([frame])
        places, logits, *_ = map(torch.from_numpy, runs.run(None, {x.name: pictures.numpy()}))
        size = (pictures.shape[2], pictures.shape[3])
        (found,) = cast(RfDetr, model.network).objects(logits, places, size)
        boxes = boxes_in_frame(found, frame, model.place(frame, size), card.labels)
        return Seen(boxes if compared else None, None)

    return [*ways, Way(_runtime("onnxruntime", "ONNX Runtime"), lambda: look_exported)], notes


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep a package from printing while it is loaded."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(before)


def _frames(path: str, model: DetectorModel | ObjectModel, films: Films) -> list[VideoFrame]:
    """Return the pictures of a film, in memory. SourceError if there are fewer than two."""
    tolerance_s = model.info.card.gap_tolerance_s
    source = open_source(path, SourceOptions(end_s=films.duration_s, box=model.info.box))
    try:
        source.open()
        frames = []
        for tick in resample(source.items(), films.rate_hz, tolerance_s):
            if isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
                rgb = tick.item.rgb  # decoded now
                frames.append(
                    replace(tick.item, time_s=tick.time_s, convert=partial(np.asarray, rgb))
                )
    finally:
        source.close()
    if len(frames) < 2:
        raise SourceError("too short to measure", where=path)
    return frames


def _rows(
    model: DetectorModel | ObjectModel, ways: Sequence[Way], films: Films
) -> list[tuple[Cell, ...]]:
    """Return a row for each way: all films, the ways in turns, ``_TURN`` pictures at a time."""
    times: list[list[float]] = [[] for _ in ways]
    macs: list[list[int | None]] = [[] for _ in ways]
    found: list[list[tuple[Box, ...] | None]] = [[] for _ in ways]
    for path in films.paths:
        frames = _frames(path, model, films)
        for way in ways:
            look = way.begin()
            for frame in frames[:_WARM_UP]:
                look(frame)
        looks = [way.begin() for way in ways]
        for first in range(0, len(frames), _TURN):
            for k, look in enumerate(looks):
                for frame in frames[first : first + _TURN]:
                    began = time.process_time()
                    boxes, count = look(frame)
                    times[k].append(1e3 * (time.process_time() - began))
                    macs[k].append(count)
                    found[k].append(boxes)
    card, base = model.info.card, statistics.fmean(times[0])
    full = [_shown(model, boxes) for boxes in found[0]]
    rows: list[tuple[Cell, ...]] = []
    for k, way in enumerate(ways):
        counts = [count for count in macs[k] if count is not None]
        share = sum(counts) / sum(filter(None, macs[0])) if counts else None
        alike = (
            None
            if card.untrained
            else _alike(full, [_shown(model, b) for b in found[k]], card.labels)
        )
        mean = statistics.fmean(times[k])
        rows.append((card.name, way.name, mean, mean / base, share, alike))
    return rows


def _shown(
    model: DetectorModel | ObjectModel, boxes: tuple[Box, ...] | None
) -> tuple[Box, ...] | None:
    """Return the boxes from the model's thresholds on."""
    if boxes is None:
        return None
    timeline = model.info.card.timeline
    least = timeline.thresholds
    return tuple(b for b in boxes if b.score >= least.get(b.label, timeline.threshold))


def _alike(
    full: Sequence[tuple[Box, ...] | None],
    found: Sequence[tuple[Box, ...] | None],
    labels: Sequence[str],
) -> float | None:
    """Return the share of boxes that have a partner in the other way; None without boxes."""
    ways = [[detected(b, labels) for b in way if b is not None] for way in (full, found)]
    if min(map(len, ways)) < len(full):
        return None
    return number(boxes_alike(*ways))
