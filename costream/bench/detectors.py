"""``costream bench objects``: gated detectors, the same networks in full, and other runtimes."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from costream.bench.changes import label_subject, pose_subject
from costream.bench.timing import quiet_torch
from costream.bench.ways import COLUMNS, Alike, Films, Look, Seen, Subject, Way, rows_of, runtime
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
from costream.models.objects.model import DetectorModel
from costream.models.onnx_step import onnx_session
from costream.models.pose.weights import ESTIMATOR
from costream.models.random_init import random_model
from costream.models.streaming import StreamingModel
from costream.sources.uris import sniff
from costream.weights_io.file import write_weights

Tokens: TypeAlias = Sequence[int | str]


def objects_table(
    films: Films, names: Sequence[str], tokens: Tokens, original: Path | None = None
) -> Table:
    """Compute the pictures of films in turns in each way; return times, operations, agreement.

    ``names``: models or weight files of NanoDet or token-gated detectors, the network of joints
    ``pose``, and models that label pictures. ``tokens``: a way for each that a detector takes, as
    in ``Options``. ``original``: checkpoint of RF-DETR, for costream and the package rfdetr.

    A time is the mean of the processor time from a picture in memory to its boxes, on one thread.
    Alike, of detectors (others: see ``bench.changes``): twice the pairs of boxes of one label that
    have an IoU of 0.5 (and 0.75), of all boxes of this way and of the network in full, above the
    model's threshold. Networks without weights here have random ones, and no boxes.

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
            subject, note = _subject(name, tokens, original, Path(scratch))
            rows += rows_of(subject, films)
            notes += note
    return Table("objects", COLUMNS, tuple(rows), tuple(notes))


def _subject(
    name: str, tokens: Tokens, original: Path | None, scratch: Path
) -> tuple[Subject, list[str]]:
    """Return a network with its ways, and what has to be noted."""
    if name == ESTIMATOR:
        return pose_subject(scratch)
    model, notes = _model(name, original, scratch)
    if isinstance(model, StreamingModel):
        return label_subject(model, name, scratch)
    ways, more = _ways(model, name, tokens, original, scratch)
    info = model.info
    subject = Subject(
        info.card.name, ways, info.box, info.card.gap_tolerance_s, partial(_alike, model)
    )
    return subject, [*notes, *more]


def _model(
    name: str, original: Path | None, scratch: Path
) -> tuple[DetectorModel | ObjectModel | StreamingModel, list[str]]:
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
    if isinstance(model, StreamingModel) and getattr(model.frontend, "takes", "") != "video":
        raise UsageError(f"{name} does not see pictures", where="-m")
    if not isinstance(model, DetectorModel | ObjectModel | StreamingModel):
        raise UsageError(f"{name} is not a single network of pictures", where="-m")
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
        Way(runtime("onnxruntime", "ONNX Runtime"), lambda: _looking(exported)),
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

    ways, notes = [Way(runtime("rfdetr", "rfdetr"), lambda: look)], []
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

    return [*ways, Way(runtime("onnxruntime", "ONNX Runtime"), lambda: look_exported)], notes


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


def _alike(
    model: DetectorModel | ObjectModel,
    full: Sequence[tuple[Box, ...]],
    found: Sequence[tuple[Box, ...]],
) -> Alike:
    """Return the shares of boxes, from the model's thresholds on, that have a partner."""
    card = model.info.card
    if card.untrained:
        return Alike(None)
    least = card.timeline.threshold_of
    one, other = (
        [
            detected(tuple(b for b in boxes if b.score >= least(b.label)), card.labels)
            for boxes in way
        ]
        for way in (full, found)
    )
    return Alike(*(number(boxes_alike(one, other, overlap)) for overlap in (0.5, 0.75)))
