"""Conformance suite: what every registered network does through the ``Model`` protocol."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError, SourceError
from costream.core.records import (
    FeatureRow,
    Objects,
    Prediction,
    Segment,
    SkeletonFrame,
    SourceInfo,
    VideoFrame,
)
from costream.models.base import GatedModel, StepResult
from costream.models.build import model_class, save_model
from costream.models.catalogue import load_model
from costream.models.compatibility import source_kind
from costream.models.joint import combine_models
from costream.models.random_init import random_model
from costream.models.spec import architectures, is_gated
from costream.models.verify import random_items, verify
from costream.options.options import Options
from costream.runtime.pipeline import run
from kit import action_nets, movinet_clip, object_nets
from kit.paths import WEIGHTS
from kit.streams import ItemSource, RecordSink

ROWS = {"input_width": 6, "num_classes": 3, "embed_dim": 8}
TRANSFORMER = {**ROWS, "num_heads": 2, "feedforward": 8, "window": 4}
DECODER = {"depth": 1, "decoder_depth": 1, "decoder_heads": 2, "decoder_feedforward": 8}
SKELETON = {"num_classes": 3, "widths": [4, 4, 8, 8], "strides": [1, 2, 1, 2], "kernel": 3}
SKELETON |= {"pool": 3}
ATTENDING = {**SKELETON, "widths": [4, 4, 8, 32, 32], "strides": [1, 2, 1, 2, 1]}
MEMBER = {**SKELETON, "joints": 25, "bones": [[k, k - 1] for k in range(1, 25)]}
CROP = {"num_classes": 3, "size": 19, "pool": 3, "frontend.size": 19, "frontend.short_side": 20}
X3D = {**CROP, "widths": [8, 12], "depths": [2, 3], "stem_width": 4, "head": [6, 7]}
SLOW = {**CROP, "widths": [8, 12, 16, 8], "depths": [1, 1, 2, 1], "stem_width": 4}
I3D = {**CROP, "widths": [8, 12, 16], "depths": [2, 3, 2], "stem_width": 4}
AUDIO = {"frontend.token_width": 5, "frontend.feature_width": 7}
AUDIO |= {"frontend.widths": [4, 6, 6, 8, 8, 10, 10]}
VIDEO = {"frontend.box": [32, 24], "frontend.widths": [4, 4, 6, 8], "frontend.motion_width": 4}
VOLUMES = {f"frontend.{k}": v for k, v in X3D.items() if k in ("size", "widths", "depths", "pool")}
VOLUMES |= {"frontend.short_side": 24, "frontend.stem_width": 4, "frontend.head": [6, 10]}
YOLOS: dict[str, Any] = {"categories": [0, 2], "dim": 16, "heads": 2, "depth": 2, "detections": 5}
YOLOS |= {"position_size": [4, 5], "frontend.short": 48, "frontend.long": 80}
RF_DETR: dict[str, Any] = {
    "categories": [0, 2],
    "dim": 16,
    "heads": 2,
    "depth": 2,
    "outputs": [1, 2],
}
RF_DETR |= {"position_size": 4, "channels": 16, "queries": 5, "self_heads": 2, "cross_heads": 2}
RF_DETR |= {"hidden": 8, "frontend.short": 64, "frontend.long": 96}
NANODET: dict[str, Any] = {"classes": 3, "stages": [[8, 2], [12, 2], [16, 1]], "width": 8}
NANODET |= {"score": 0.45, "frontend.box": [96, 64]}
CMERT = {"memory_samples": 3, "context": 2, "anticipated": 2, "generated": 3}
# architecture -> arguments that make it small; without any it has the size of its paper
SMALL: dict[str, dict[str, Any]] = {
    "cooadtr": TRANSFORMER,
    "cotrans": TRANSFORMER,
    "conystrom": {**TRANSFORMER, "num_landmarks": 2},
    "conystrom-audio": {**TRANSFORMER, "num_landmarks": 2},
    "oadtr": {**TRANSFORMER, **DECODER, "num_queries": 2},
    "deepcot": TRANSFORMER,
    "cotext": {**TRANSFORMER, "frontend.buckets": 99},
    "miniroad": {**ROWS, "hidden": 8},
    "testra": {**TRANSFORMER, "memory": 3, "refined": 2, "memory_every": 2},
    "cmert": {**TRANSFORMER, **CMERT, "memory": 3, "refined": 2, "memory_every": 2},
    "features": {"embed_dim": 6},
    "encoder": {"embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 4},
    "deepcot-encoder": {"embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 4},
    "costgcn": SKELETON,
    "coagcn": {**SKELETON, "padding": "causal"},
    "costr": {**ATTENDING, "kernel": 5, "padding": "none"},
    "stgcn": {**SKELETON, "window": 12},
    "agcn": {**SKELETON, "window": 12, "hop": 2},
    "str": {**ATTENDING, "window": 12},
    "skeleton-ensemble": {"members": [MEMBER] * 2, "weights": [2, 1]},
    "cox3d": X3D,
    "coslow": SLOW,
    "coi3d": I3D,
    "x3d": {**X3D, "window": 5},
    "slow": {**SLOW, "window": 5},
    "i3d": {**I3D, "window": 5},
    "linear": {"num_classes": 3, "window": 4, "frontend.size": 32, "frontend.width": 0.25},
    "efficientat": {"num_classes": 5, "width": 0.1, "window_frames": 100},
    "yamnet": {"num_classes": 5, "widths": [4, 4, 6, 6, 8, 8, *[10] * 6, 12, 12]},
    "movinet": {**movinet_clip.SMALL, **movinet_clip.CROP, "num_classes": 3, "window": 5},
    "yolos": YOLOS,
    "rf-detr": RF_DETR,
    "nanodet": NANODET,
    "vitdet": {**object_nets.ARGUMENTS, "frontend.box": list(object_nets.BOX)},
    "vivit": {**action_nets.ARGUMENTS, "frontend.size": action_nets.SIDE},
}


def build(
    architecture: str, dtype: str = "float32", frontend: str | None = None, **more: Any
) -> Any:
    """Return a model with small random weights, always the same."""
    settings = {**SMALL.get(architecture, {}), **more}
    card, network, front = random_model(architecture, architecture, settings, frontend)
    if frontend == "audio":
        front.mel.fill(16_000, 50, 7800)  # type: ignore[union-attr, operator]
    return model_class(card)(card, network, front, weights_sha256="ab" * 32, dtype=dtype)


def joint(dtype: str = "float32") -> Any:
    """Return two networks on one audio frontend."""
    one, other = (build("cotrans", dtype, "audio", **AUDIO, window=n) for n in (4, 6))
    second = type(other.info.card)(**{**vars(other.info.card), "name": "other"})
    other = type(other)(second, other.network, other.frontend, dtype=dtype)
    return combine_models([one, other])


# Of video: streams may start at different times.
ANY_TIME = ("cooadtr, tdn", "movinet", "nanodet", "linear")
SILENT = ("features", "encoder", "deepcot-encoder")  # no classifier
# That of a user's file: tests/models/importers/test_user_network.py.
# Joints of persons are found for other models: tests/models/test_pose.py.
BUILT = [n for n in architectures() if n not in ("user-network", "blazepose", "movenet", "falls")]
MODELS = {name: partial(build, name) for name in BUILT if name not in SILENT}
MODELS |= {
    "cooadtr, tdn": partial(build, "cooadtr", frontend="tdn", **VIDEO),
    "cooadtr, cox3d": partial(build, "cooadtr", frontend="cox3d", **VOLUMES),
    "cotrans, audio": partial(build, "cotrans", frontend="audio", **AUDIO),
    "two on audio": joint,
    "falls": partial(load_model, "falls", WEIGHTS / "falls.safetensors"),
}
EVERY = pytest.mark.parametrize("name", MODELS)
model_of = cache(lambda name: MODELS[name]())


def initial(model: Any) -> Any:
    """Return an initial state; few tokens of a token-gated model are computed."""
    state = model.init_state()
    if isinstance(model, GatedModel):
        state.tokens = 4
    return state


def length(model: Any) -> int:
    """Return a number of steps after which every window is full, with some outputs more."""
    frames = model.network.window if hasattr(model.network, "window") else 1
    return int((frames + 3) * (model.info.stride if isinstance(model, GatedModel) else 1))


def items_of(model: Any, count: int, seed: int = 0) -> list[Any]:
    """Return items of noise; for a token-gated model frames of which little changes."""
    if not isinstance(model, GatedModel):
        return random_items(model, count, seed)
    picture, items = random_items(model, 1, seed)[0].rgb.copy(), []
    for k in range(count):
        picture[k % 8 : k % 8 + 4, :8] = 255 - picture[k % 8 : k % 8 + 4, :8]
        items.append(VideoFrame(k, k / 10, k, picture.copy().copy))
    return items


def values(result: StepResult) -> tuple[Any, ...]:
    """Return all that does not depend on the clock or on rounding."""
    return (result.warmup, result.macs, result.dense_macs, result.tokens)


def assert_equal(results: list[StepResult], expected: list[StepResult], atol: float = 0.0) -> None:
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        assert values(a) == values(b)
        assert (a.objects == b.objects) or atol
        for x, y in ((a.probabilities, b.probabilities), (a.anticipation, b.anticipation)):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def step(model: Any, items: list[Any], state: Any) -> list[StepResult]:
    return [model.step([item], state) for item in items]


def source(kind: Any) -> SourceInfo:
    return SourceInfo("x", "x", kind, 1.0, 4.0)


@EVERY
def test_the_info_describes_what_it_takes(name: str) -> None:
    model = model_of(name)
    info, kind = model.info, source_kind(model.frontend)
    assert (info.box is not None) == (kind in ("video", "skeleton"))
    assert (info.sound is not None) == (kind == "audio")
    assert info.beside is None
    together = kind in ("audio", "text") or (
        kind == "video" and hasattr(model.frontend, "forward_steps")
    )
    assert (info.frames, info.chunk > 1) == (1, together)
    assert info.in_time or kind in ("features", "audio", "text") or name in ANY_TIME
    assert [label for head in info.heads for label in head.card.labels] == list(info.card.labels)
    assert all(head.weights_sha256 is not None for head in info.heads)
    assert isinstance(model, GatedModel) == is_gated(info.card.architecture)
    with pytest.raises(FrozenInstanceError):
        info.stride = 3


@EVERY
def test_only_sources_of_its_kind_are_taken(name: str) -> None:
    model = model_of(name)
    kind = source_kind(model.frontend)
    assert isinstance(model.check(source(kind)), dict)
    refused = {"features", "skeleton", "video", "audio", "text"} - {kind}
    if hasattr(model.frontend, "token_width"):  # its tokens may come as features
        refused -= {"features"}
    if kind == "skeleton":  # joints are found in video
        refused -= {"video"}
    for other in refused:
        with pytest.raises(SourceError, match=f"{model.info.card.name} takes .*, not"):
            model.check(source(other))


@pytest.mark.parametrize("name", SILENT)
def test_without_a_classifier_no_source_is_taken(name: str) -> None:
    model = build(name, frontend="tdn" if name == "features" else None)
    with pytest.raises(ModelError, match="without a classifier"):
        model.check(source("video"))


@EVERY
def test_steps_are_single_steps(name: str) -> None:
    model = model_of(name)
    items = items_of(model, length(model))
    results = model.steps(items, initial(model))
    assert_equal(results, step(model, items, initial(model)), 1e-5)


@EVERY
def test_outputs_come_every_stride_and_are_probabilities(name: str) -> None:
    model = model_of(name)
    results = step(model, items_of(model, length(model)), initial(model))
    if model.info.card.task == "object detection":
        assert all(result.objects is not None for result in results)
        return
    steps = [k for k, result in enumerate(results) if result.probabilities is not None]
    assert steps == list(range(steps[0], len(results), model.info.stride))
    for k in steps:
        rows = results[k].probabilities
        assert rows is not None
        assert rows.shape == (1, len(model.info.card.labels))
        for head in model.info.heads:
            if head.card.multilabel:
                assert ((rows > 0) & (rows < 1)).all()
                continue
            assert rows[:, head.columns].sum() == pytest.approx(1, abs=1e-5)


@EVERY
def test_the_shortest_input_has_an_answer(name: str) -> None:
    """Also from networks whose first output comes steps later, at the end of the input."""
    model, kept = model_of(name), RecordSink()
    kind = "audio" if model.info.sound else "text" if model.info.text else "video"
    item = items_of(model, 1)[0]
    kinds = {SkeletonFrame: "skeleton", FeatureRow: "features"}
    width = len(item.values) if isinstance(item, FeatureRow) else None
    info = replace(source(kinds.get(type(item), kind)), width=width)
    summary = run(ItemSource(info, [item]), model, [kept], options=Options(threshold=1e-6))
    answers = kept.of(Objects) or kept.of(Prediction)
    assert answers
    assert answers[0].time_s - item.time_s <= model.info.delay / kept.header.rate_hz
    assert summary.media_s == pytest.approx(1 / kept.header.rate_hz)
    end_s = item.time_s + (0 if model.info.sound else 1 / kept.header.rate_hz)
    for segment in kept.of(Segment):
        assert segment.start_s < segment.end_s <= end_s + 1e-6
    assert kept.of(Segment) or kept.of(Objects)


@EVERY
def test_the_window_fills_once_and_steps_have_a_cost(name: str) -> None:
    model = model_of(name)
    results = step(model, items_of(model, length(model)), initial(model))
    flags = [result.warmup[0] for result in results]
    assert flags == sorted(flags, reverse=True)
    assert not flags[-1]
    assert sum(result.macs for result in results) > 0
    assert all((result.macs > 0) == (result.dense_macs > 0) for result in results)
    if name.startswith("cooadtr, "):
        assert results[0].macs == model.frontend.count_macs() + model.network.count_macs()
    assert all(result.macs <= result.dense_macs for result in results[1:])


@EVERY
def test_a_batch_is_its_streams_one_by_one(name: str) -> None:
    model = model_of(name)
    if isinstance(model, GatedModel):
        with pytest.raises(ValueError, match="holds one stream, not 2"):
            model.init_state(2)
        return
    streams = [items_of(model, length(model), seed) for seed in range(3)]
    state, begin = model.init_state(3), 0 if model.info.in_time else 2
    together = []
    for k, items in enumerate(zip(*streams, strict=True)):
        if k == begin:
            state.reset([1] if begin else None)
        result = model.step(items, state)
        assert len(result.warmup) == 3
        together.append([result.row(row) for row in range(3)])
    for row, items in enumerate(streams):
        first = begin if row == 1 else 0
        alone = step(model, items[first:], model.init_state())
        assert_equal([results[row] for results in together[first:]], alone, 1e-5)


@EVERY
def test_a_state_that_is_reset_is_a_fresh_one(name: str) -> None:
    model = model_of(name)
    items, state = items_of(model, length(model)), initial(model)
    first = step(model, items, state)
    state.reset()
    assert_equal(step(model, items, state), first)


@EVERY
def test_copies_of_a_state_continue_bit_for_bit(name: str) -> None:
    model = model_of(name)
    items = items_of(model, length(model))
    half = len(items) // 2 + 1
    state, loaded, put = initial(model), initial(model), initial(model)
    step(model, items[:half], state)
    loaded.load_tensors({key: tensor.clone() for key, tensor in state.tensors().items()})
    put.put([0], state.take([0]))
    copies = [state.clone(), state.take([0]), loaded, put]
    expected = step(model, items[half:], state)
    for copy in copies:
        assert_equal(step(model, items[half:], copy), expected)
        for key, tensor in copy.tensors().items():
            assert torch.equal(tensor, state.tensors()[key])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "two on audio"])
def test_a_weight_file_gives_the_model_back(name: str, tmp_path: Path) -> None:
    model, path = model_of(name), tmp_path / "x.safetensors"
    digest = save_model(path, model.info.card, model.network, model.frontend)
    assert verify(path) == digest
    again = load_model(str(path), device="cpu")
    assert (type(again), type(again.network)) == (type(model), type(model.network))
    assert again.info.weights_sha256 == digest
    items = items_of(model, length(model))
    assert_equal(step(again, items, initial(again)), step(model, items, initial(model)))


@pytest.mark.parametrize("name", sorted({*MODELS, *SILENT} - {"two on audio"}))
def test_weights_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    frontend, path = "tdn" if name == "features" else None, tmp_path / "x.safetensors"
    model = build(name, frontend=frontend) if name in SILENT else MODELS[name]()
    save_model(path, model.info.card, model.network, model.frontend)
    verify(path)
    for module in (model.network, model.frontend):
        for poison in (float("nan"), float("inf")):
            parameters = [] if module is None else list(module.parameters())
            if parameters:
                kept = parameters[-1].clone()
                parameters[-1].view(-1)[0] = poison
                save_model(path, model.info.card, model.network, model.frontend)
                with pytest.raises(ModelError, match=r"x\.safetensors: .*not finite"):
                    verify(path)
                parameters[-1].copy_(kept)


@pytest.mark.parametrize("name", ["cooadtr", "cooadtr, tdn", "encoder"])
def test_outputs_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    model, path = build(name) if name in SILENT else MODELS[name](), tmp_path / "x.safetensors"
    for parameter in model.network.parameters():
        parameter.fill_(3e38)
    save_model(path, model.info.card, model.network, model.frontend)
    with pytest.raises(ModelError, match=r"x\.safetensors: stepping gives .*not finite"):
        verify(path)


@EVERY
def test_float64_gives_nearly_the_same(name: str) -> None:
    model, other = model_of(name), MODELS[name](dtype="float64")
    items = items_of(model, length(model))
    assert_equal(step(other, items, initial(other)), step(model, items, initial(model)), 1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if is_gated(name)])
def test_tokens_are_a_setting_of_the_state(name: str) -> None:
    model = model_of(name)
    state, other = model.init_state(), model.init_state()
    state.tokens = 3
    counts = [r.tokens for r in step(model, items_of(model, 4 * model.info.stride), state)]
    assert [count for count in counts if count][1:] == [(3,)] * 3
    state.pace = lambda gate: 2 + gate % 2
    for copy in (state.clone(), state.take([0])):
        assert (copy.tokens, copy.pace) == (state.tokens, state.pace)
    state.reset([0])
    state.load_tensors(other.tensors())
    state.put([0], other)
    assert (state.tokens, state.pace(0)) == (3, 2)
    other.put([0], state)
    assert (other.tokens, other.pace) == (None, None)
    assert "tokens" not in state.tensors()


def test_every_kind_of_frontend_source_is_covered() -> None:
    kinds = {source_kind(model_of(name).frontend) for name in MODELS}
    assert kinds == {"features", "skeleton", "video", "audio", "text"}
    assert set(SMALL) >= set(BUILT)
