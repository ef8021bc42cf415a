"""Streaming models: frontend and network together, sources, devices, types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError, SourceError
from costream.core.records import Data, FeatureRow, SourceInfo, SourceKind, VideoFrame
from costream.models.catalogue import load_model
from costream.models.devices import find_device
from costream.models.frontend import load_frontend
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.miniroad import MiniRoad
from costream.models.oad.oadtr import OadTR
from costream.models.streaming import ModelState, StreamingModel
from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder
from costream.weights_io.card import Card

FRONTEND = {"box": (32, 24), "widths": (4, 4, 6, 8), "motion_width": 4, "lags": (1, 3)}
SIZES = {"embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 4}
LABELS = ("background", "sit", "stand")


def card(architecture: str, arguments: dict[str, Any], **more: Any) -> Card:
    task = "online action detection"
    return Card("tiny", task, architecture, arguments, more.pop("labels", LABELS), 4.0, **more)


def features_model(**options: Any) -> StreamingModel:
    arguments = {"input_width": 6, "num_classes": 3, **SIZES}
    return StreamingModel(card("cooadtr", arguments), CoOadTR(**arguments), **options)


def miniroad_model() -> StreamingModel:
    arguments = {"input_width": 6, "num_classes": 3, "hidden": 8, "embed_dim": 8}
    return StreamingModel(card("miniroad", arguments), MiniRoad(**arguments))


def video_model(**options: Any) -> StreamingModel:
    frontend = load_frontend("tdn", **FRONTEND)
    arguments = {"input_width": frontend.token_width, "num_classes": 3, **SIZES}
    about = card("cooadtr", arguments, frontend="tdn", frontend_arguments=FRONTEND)
    return StreamingModel(about, CoOadTR(**arguments), frontend, **options)


def info(kind: SourceKind, **known: Any) -> SourceInfo:
    return SourceInfo("x", "x", kind, None, None, **known)


def rows(count: int, width: int, seed: int = 0) -> list[FeatureRow]:
    values = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return [FeatureRow(i, i / 4, row) for i, row in enumerate(values)]


def frames(count: int, size: tuple[int, int] = (24, 32), seed: int = 0) -> list[VideoFrame]:
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    return [VideoFrame(i, i / 8, i, picture.copy) for i, picture in enumerate(pictures)]


def run(model: StreamingModel, items: list[Any]) -> np.ndarray:
    state = model.init_state()
    return np.concatenate([model.step([item], state).probabilities for item in items])


def test_feature_rows_go_straight_to_the_network() -> None:
    model, items = features_model(), rows(10, 6)
    state = model.network.init_state(1)
    for item, got in zip(items, run(model, items), strict=True):
        out = model.network.forward_step(torch.from_numpy(item.values)[None], state)
        expected = torch.softmax(out.logits[0], -1).numpy()
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_frames_go_through_the_frontend() -> None:
    model, items = video_model(), frames(6, (20, 30))
    assert model.info.box == (32, 24)
    pictures = torch.from_numpy(np.stack([model.frontend.prepare(f.rgb) for f in items]))
    with torch.inference_mode():
        tokens = model.frontend(pictures[None])
        expected = torch.softmax(model.network(tokens).logits[0], -1).numpy()
    np.testing.assert_allclose(run(model, items), expected, atol=1e-5)


def test_tokens_of_the_frontend_may_come_as_features() -> None:
    model = video_model()
    model.check(info("features", width=model.input_width))
    assert run(model, rows(3, model.input_width)).shape == (3, 3)


def test_costs_and_times() -> None:
    model = video_model()
    frontend = model.frontend.count_macs()
    assert model.macs == frontend + model.network.count_macs()
    assert model.dense_macs == frontend + model.network.dense_macs
    result = model.step(frames(1), model.init_state())
    assert result.frontend_s > 0
    assert result.network_s > 0
    assert features_model().step(rows(1, 6), features_model().init_state()).frontend_s == 0


def test_anticipation() -> None:
    arguments = {"input_width": 6, "num_classes": 3, **SIZES, "num_queries": 5, "decoder_heads": 2}
    model = StreamingModel(card("oadtr", arguments), OadTR(**arguments))
    result = model.step(rows(1, 6), model.init_state())
    assert result.anticipation is not None
    assert result.anticipation.shape == (1, 5, 3)
    np.testing.assert_allclose(result.anticipation.sum(-1), 1, atol=1e-6)
    assert features_model().step(rows(1, 6), features_model().init_state()).anticipation is None


@pytest.mark.parametrize("make", [features_model, miniroad_model])
def test_a_stream_whose_scores_are_not_numbers_starts_again(make: Any) -> None:
    """Else it would have none for a window, or for ever, and the others go on."""
    model, first, second = make(), rows(12, 6), rows(12, 6, seed=1)
    first[4] = replace(first[4], values=np.full(6, 1e38, np.float32))
    state = model.init_state(2)
    results = [model.step(pair, state) for pair in zip(first, second, strict=True)]
    told = [r.overflowed for r in results]
    assert told == [(True, False) if k == 4 else None for k in range(12)]
    assert [results[4].row(k).overflowed for k in (0, 1)] == [(True,), None]
    scores = np.stack([r.probabilities for r in results], 1)
    assert np.isnan(scores[0, 4]).all()
    np.testing.assert_allclose(scores[0, :4], run(model, first[:4]), atol=1e-6)
    np.testing.assert_allclose(scores[0, 5:], run(model, first[5:]), atol=1e-6)
    np.testing.assert_allclose(scores[1], run(model, second), atol=1e-6)


@pytest.mark.parametrize("counts", [(16,), (3, 2, 11), (1, 15)])
def test_frames_together_are_frames_one_by_one(counts: tuple[int, ...]) -> None:
    frontend, items = load_frontend("tdn", **FRONTEND), iter(frames(16))
    arguments = {"input_width": frontend.token_width, "num_classes": 3, **SIZES}
    arguments |= {"num_queries": 5, "decoder_heads": 2}
    about = card("oadtr", arguments, frontend="tdn", frontend_arguments=FRONTEND)
    model = StreamingModel(about, OadTR(**arguments), frontend)
    state, alone = model.init_state(), model.init_state()
    for count in counts:
        some = [next(items) for _ in range(count)]
        for got, item in zip(model.steps(some, state), some, strict=True):
            expected = model.step([item], alone)
            np.testing.assert_allclose(got.probabilities, expected.probabilities, atol=1e-6)
            assert got.anticipation is not None
            np.testing.assert_allclose(got.anticipation, expected.anticipation, atol=1e-6)
            assert (got.warmup, got.macs) == (expected.warmup, expected.macs)


@pytest.mark.parametrize("make", [features_model, video_model])
def test_bfloat16_gives_nearly_the_same(make: Any) -> None:
    torch.manual_seed(1)
    model = make()
    torch.manual_seed(1)
    other = make(dtype="bfloat16")
    items: list[Data] = [*rows(6, 6)] if model.frontend is None else [*frames(6)]
    got = run(other, items)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, run(model, items), atol=0.05)


@pytest.mark.parametrize(
    ("make", "kind", "width", "message"),
    [
        (features_model, "features", 5, "rows of 5 values, but tiny takes 6"),
        (features_model, "video", None, "takes precomputed features, not video; .*6 values a row"),
        (video_model, "features", 9, "rows of 9 values, but tiny takes 16"),
        (video_model, "skeleton", None, "takes video, not skeletons; .*-m costgcn"),
    ],
)
def test_sources_that_do_not_fit(make: Any, kind: Any, width: int | None, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        make().check(info(kind, width=width))


def test_joints_in_space_and_in_pictures_have_a_model_each() -> None:
    for axes, name in ((3, "costgcn"), (2, "costgcn-2d")):
        with pytest.raises(SourceError, match=f"for skeletons: -m {name}$"):
            video_model().check(info("skeleton", axes=axes))


def test_sources_that_fit() -> None:
    features_model().check(info("features", width=6))
    features_model().check(info("features"))
    video_model().check(info("video"))


def test_frames_and_rows_do_not_mix() -> None:
    model = video_model()
    with pytest.raises(ValueError, match="of one type"):
        model.step([*frames(1), *rows(1, model.input_width)], model.init_state(2))
    with pytest.raises(SourceError, match="takes precomputed features"):
        features_model().step(frames(1), features_model().init_state())


def test_an_encoder_is_for_python_only() -> None:
    encoder = Encoder(EncoderConfig(8, 2, 8, 1, 4))
    model = StreamingModel(card("encoder", {"embed_dim": 8}, labels=()), encoder)
    assert model.network is encoder
    assert isinstance(model.init_state(), ModelState)
    with pytest.raises(ModelError, match=r"without a classifier.*\.network"):
        model.check(info("features", width=8))


def test_devices() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("tpu9", "cuda:x", ""):
        with pytest.raises(ModelError, match="unknown device"):
            find_device(name)
    for name in ("cuda:99", "meta", "xpu"):
        with pytest.raises(ModelError, match="is not available"):
            find_device(name)
    with pytest.raises(ModelError, match="unknown type 'int8'; known are float32"):
        features_model(dtype="int8")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_spectrograms_are_not_of_16_bits(dtype: str) -> None:
    with pytest.raises(ModelError, match=f"no spectrograms in {dtype}"):
        load_model("cosounds", dtype=dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [features_model, video_model])
def test_cuda_gives_the_same(make: Any) -> None:
    torch.manual_seed(1)
    model = make()
    torch.manual_seed(1)
    other = make(device="cuda")
    items: list[Data] = [*rows(6, 6)] if model.frontend is None else [*frames(6)]
    np.testing.assert_allclose(run(other, items), run(model, items), atol=1e-3)
