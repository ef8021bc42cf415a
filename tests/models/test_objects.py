"""Token-gated object detection: equality with the network by hand, places of boxes, states."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import ModelError
from costream.core.records import Box, VideoFrame
from costream.models.base import StepResult
from costream.models.eventful.box_heads import Detections
from costream.models.eventful.changed_stem import RENEWED, ChangedStem
from costream.models.eventful.detector import ObjectModel, ObjectState
from costream.models.eventful.shuffle import ShuffleEmbedding
from costream.models.images import Pixels
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.sources.base import SourceOptions
from costream.sources.media.lazy_image import fit
from costream.sources.uris import open_source
from kit.media import make_video
from kit.object_nets import BOX, LABELS, bright_model, object_card, random_model, random_network
from kit.paths import SAMPLES

ROOM = SAMPLES / "room.mp4"
TOKENS = 35


@pytest.fixture(scope="module")
def frames() -> list[VideoFrame]:
    """The first eight pictures of the sample, fitted into the box."""
    return read(ROOM)[:8]


def read(path: Path, box: tuple[int, int] = BOX) -> list[VideoFrame]:
    source = open_source(str(path), SourceOptions(box=box, end_s=1.0))
    source.open()
    try:
        items = [item for item in source.items() if isinstance(item, VideoFrame)]
        return [item for item in items if item.rgb is not None]
    finally:
        source.close()


def plain(size: tuple[int, int], seed: int) -> VideoFrame:
    """A picture of noise, as large as it is."""
    shape = (size[1], size[0], 3)
    rgb = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return VideoFrame(seed, seed / 10, seed, lambda: rgb)


def run(model: ObjectModel, frames: list[VideoFrame], state: ObjectState) -> list[StepResult]:
    return [model.step([frame], state) for frame in frames]


def comparable(results: list[StepResult]) -> list[Any]:
    """All that does not depend on the clock."""
    return [
        (r.objects, r.macs, r.dense_macs, r.updated[0].tolist())
        for r in results
        if r.updated is not None
    ]


@torch.no_grad()
def test_it_gives_what_the_network_gives_by_hand(frames: list[VideoFrame]) -> None:
    model, network, pixels = random_model(), random_network(), Pixels(BOX)
    state, memory = model.init_state(), network.init_state(1, 80, 112)
    state.tokens = 9
    found = 0
    for frame, result in zip(frames, run(model, frames, state), strict=True):
        operations = Operations()
        pictures = pixels(torch.from_numpy(pixels.prepare(frame.rgb))[None])
        (hand,) = network.forward_step(pictures, memory, TopTokens(9), operations)
        height, width = frame.rgb.shape[:2]
        ratio = np.array([640 / width, 480 / height] * 2)
        expected = np.clip(hand.boxes.numpy() * ratio, 0, [640, 480] * 2)
        kept = (expected[:, :2] < expected[:, 2:]).all(1)
        boxes = result.objects[0]  # type: ignore[index]
        assert np.allclose([corners(b) for b in boxes], expected[kept], rtol=0, atol=1e-3)
        assert [b.score for b in boxes] == hand.scores.numpy()[kept].tolist()
        assert [LABELS.index(b.label) for b in boxes] == hand.labels.numpy()[kept].tolist()
        assert result.macs == operations.total
        assert (result.probabilities, result.anticipation, result.warmup) == (None, None, (False,))
        found += len(boxes)
    assert found > 20


def corners(box: Box) -> tuple[float, float, float, float]:
    return box.x1, box.y1, box.x2, box.y2


@torch.no_grad()
def test_all_tokens_are_the_dense_network(frames: list[VideoFrame]) -> None:
    model, network, pixels = random_model(), random_network(), Pixels(BOX)
    for frame, result in zip(frames, run(model, frames, model.init_state()), strict=True):
        dense = network(pixels(torch.from_numpy(pixels.prepare(frame.rgb))[None]))[0]
        boxes = result.objects[0]  # type: ignore[index]
        assert np.allclose([b.score for b in boxes], dense.scores, rtol=0, atol=1e-5)
        assert result.updated is not None
        assert result.updated[0].all()
        assert result.updated[0].shape == (5, 7)


def test_tokens_are_as_requested_and_cost_less(frames: list[VideoFrame]) -> None:
    model = random_model()
    state = model.init_state()
    assert model.token_count(state) is None
    with pytest.raises(ValueError, match="unknown before the first frame"):
        model.step_macs(state, 5)
    state.tokens = 5
    results = run(model, frames, state)
    assert [int(r.updated[0].sum()) for r in results] == [TOKENS] + 7 * [5]  # type: ignore[index]
    assert results[0].macs == results[0].dense_macs  # the first frame is computed in full
    assert all(r.macs < r.dense_macs for r in results[1:])
    assert model.token_count(state) == TOKENS
    costs = [model.step_macs(state, count) for count in (*range(1, TOKENS + 1), 1000)]
    assert costs == sorted(costs)  # type: ignore[type-var]
    assert costs[-1] == costs[-2]
    # Maps are foreseen roughly: what they cost hangs on where the tokens lie.
    assert results[-1].macs <= 1.25 * costs[4]  # type: ignore[operator]
    state.tokens = 12
    state.reset([0])
    counts = [int(r.updated[0].sum()) for r in run(model, frames[:2], state)]  # type: ignore[index]
    assert counts == [TOKENS, 12]  # the number stays when all else is forgotten


def test_a_learned_policy_chooses_as_many_tokens_but_not_those_of_a_distance(
    frames: list[VideoFrame],
) -> None:
    plain = random_model()
    learned = ObjectModel(object_card(), random_network(token_gate=[3, 2, 4]), Pixels(BOX))
    learned.network.load_state_dict(plain.network.state_dict(), strict=False)

    def computed(model: ObjectModel, tokens: int | str | None) -> list[Any]:
        state = model.init_state()
        state.tokens = tokens
        return [r.updated[0].tolist() for r in run(model, frames, state)]  # type: ignore[index]

    some, others = computed(learned, 5), computed(plain, 5)
    assert some != others
    assert [np.sum(one) for one in some] == [np.sum(one) for one in others]
    assert computed(learned, ">0.1") == computed(plain, ">0.1")
    assert computed(learned, None) == computed(plain, None)


# --- a stem of convolutions -------------------------------------------------------------------


STEM: dict[str, Any] = {"shuffle": [[8, 2], [16, 2], [32, 2]], "ghost": 16}


@pytest.fixture(scope="module")
def stemmed() -> ObjectModel:
    return ObjectModel(object_card(), random_network(**STEM), Pixels(BOX))


def corner(count: int) -> list[VideoFrame]:
    """Pictures of noise of which a corner changes."""
    rng = np.random.default_rng(5)
    rgb = rng.integers(0, 256, (80, 112, 3), np.uint8)
    pictures = []
    for _ in range(count):
        rgb = rgb.copy()
        rgb[:8, :8] = rng.integers(0, 256, (8, 8, 3))
        pictures.append(rgb)
    return [VideoFrame(k, k / 10, k, partial(np.copy, p)) for k, p in enumerate(pictures)]


def limited(model: ObjectModel, tokens: int | str | None = 9) -> ObjectState:
    state = model.init_state()
    state.tokens = tokens
    return state


@pytest.mark.parametrize("all_of_them", [None, "100%", TOKENS, ">0.1"])
def test_with_fewer_tokens_the_stem_computes_what_has_changed(
    stemmed: ObjectModel, all_of_them: int | str | None
) -> None:
    few, every = (run(stemmed, corner(6), limited(stemmed, tokens)) for tokens in (9, all_of_them))
    whole, pictures = Operations(), torch.zeros(1, 3, 80, 112)
    stemmed.network.embed(pictures, whole)
    # The second step keeps the maps, so it is complete, too.
    heads = [a.macs - whole.total for a in few[:2]]
    assert min(heads) > 0
    assert all(0 < b.macs < min(heads) + whole.total / 2 for b in few[2:])
    assert all(b.macs > whole.total for b in every)
    assert len({r.dense_macs for r in (*few, *every)}) == 1


def test_tokens_near_and_far_from_a_change_are_nearly_those_of_complete_pictures() -> None:
    torch.manual_seed(0)
    stem = ShuffleEmbedding(16, 16, STEM["shuffle"], STEM["ghost"]).double().eval()
    changed = ChangedStem(stem)
    state, operations = changed.init_state(160, 224), Operations()
    picture = torch.randn(1, 3, 160, 224, dtype=torch.float64)
    wrong = []
    for _ in range(RENEWED + 2):
        picture[:, :, 64:80, 96:112] += 0.5 * torch.randn(3, 16, 16)
        picture += 1e-4  # less than the threshold
        tokens, _ = changed.forward_step(picture, state, operations)
        with torch.no_grad():
            wrong.append((tokens - stem(picture)).abs().amax(-1)[0])
    exact = [k for k, error in enumerate(wrong) if error.max() < 1e-9]
    assert exact == [0, 1, RENEWED]  # complete; the maps are kept; renewed
    assert max(error.max() for error in wrong) < 0.05  # of tokens with the norm 1 a number
    assert max(error[4, 6] for error in wrong) < 0.005  # where it changes


def test_a_stream_with_kept_maps_continues_from_its_tensors(stemmed: ObjectModel) -> None:
    films, state = corner(8), limited(stemmed)
    run(stemmed, films[:4], state)
    saved = {name: tensor.clone() for name, tensor in state.tensors().items()}
    loaded = limited(stemmed)
    loaded.load_tensors(saved)
    copies = [state.clone(), loaded]
    expected = comparable(run(stemmed, films[4:], state))
    assert all(comparable(run(stemmed, films[4:], other)) == expected for other in copies)
    assert any(name.startswith("stem.") for name in saved)
    older = {name: t for name, t in saved.items() if not name.startswith("stem.")}
    loaded.load_tensors(older)  # of a version that computed all of the stem
    first = run(stemmed, films[4:], loaded)[0]
    assert first.macs > expected[0][1]
    with pytest.raises(KeyError, match="does not fit"):
        random_model().init_state().load_tensors(saved)


def test_a_state_before_its_first_picture_is_saved_too() -> None:
    model = random_model()
    state = model.init_state()
    state.load_tensors(model.init_state().tensors())
    assert state.frame_size is None
    step = model.step([plain((60, 40), 1)], state)
    state.load_tensors(model.init_state().tensors())
    assert comparable([model.step([plain((60, 40), 1)], state)]) == comparable([step])


def test_tensors_that_do_not_fit_are_refused() -> None:
    model = random_model()
    state = model.init_state()
    model.step([plain((60, 40), 1)], state)
    tensors = state.tensors()
    with pytest.raises(KeyError):
        model.init_state().load_tensors({k: v for k, v in tensors.items() if k == "size"})
    with pytest.raises(KeyError):
        model.init_state().load_tensors({**tensors, "size": torch.zeros(1, 2).long()})
    with pytest.raises(ValueError, match="size"):
        model.init_state().load_tensors({**tensors, "size": torch.zeros(1).long()})
    with pytest.raises(IndexError, match="of 1 stream"):
        state.take([1])


def test_a_picture_of_another_size_starts_again() -> None:
    model = random_model()
    state = model.init_state()
    state.tokens = 3
    sizes = [(112, 80), (112, 80), (80, 80), (80, 80), (112, 80)]
    results = run(model, [plain(size, k) for k, size in enumerate(sizes)], state)
    counts = [int(r.updated[0].sum()) for r in results]  # type: ignore[index]
    # Noise is a scene cut as well, so the second of each size is computed in full anyway.
    assert counts == [35, 35, 25, 25, 35]
    alone = model.init_state()
    assert comparable(results[2:4]) == comparable(
        run(model, [plain((80, 80), k) for k in (2, 3)], alone)
    )
    assert model.token_count(state) == 35


# --- where a box is --------------------------------------------------------------------------


class Placed:
    """A network's answer that is known: boxes in pixels of what the network takes."""

    def __init__(self, *boxes: tuple[float, float, float, float]) -> None:
        count = len(boxes)
        found = Detections(
            torch.tensor(boxes), torch.full((count,), 0.5), torch.zeros(count).long()
        )
        self.model = random_model()
        self.model.network.detect = lambda *_: [found]  # type: ignore[method-assign]

    def boxes(self, frame: VideoFrame) -> tuple[Box, ...]:
        return self.model.step([frame], self.model.init_state()).objects[0]  # type: ignore[index]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.integers(1, 5000), st.integers(1, 5000), st.lists(st.floats(0, 1), min_size=4, max_size=4)
)
def test_boxes_go_back_by_the_ratio_of_the_sizes(
    width: int, height: int, shares: list[float]
) -> None:
    fitted = fit((width, height), BOX)
    rgb = np.zeros((fitted[1], fitted[0], 3), np.uint8)
    frame = VideoFrame(0, 0.0, 0, lambda: rgb, size=(width, height))
    x1, x2 = sorted(shares[:2])
    y1, y2 = sorted(shares[2:])
    (whole, *part) = Placed(
        (0, 0, *fitted), (x1 * fitted[0], y1 * fitted[1], x2 * fitted[0], y2 * fitted[1])
    ).boxes(frame)
    assert corners(whole) == (0, 0, width, height)
    for box in part:  # none when it has no area
        expected = (x1 * width, y1 * height, x2 * width, y2 * height)
        assert np.allclose(corners(box), expected, rtol=1e-6, atol=1e-3)


def test_boxes_end_where_the_picture_does() -> None:
    # 100 x 70 is filled up to 112 x 80.
    frame = plain((100, 70), 0)
    across, beside = (90.0, 60.0, 112.0, 80.0), (100.0, 0.0, 112.0, 80.0)
    assert [corners(box) for box in Placed(across, beside).boxes(frame)] == [(90, 60, 100, 70)]


def bright(at: tuple[int, int, int, int], size: tuple[int, int]) -> np.ndarray:
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    picture[at[1] : at[3], at[0] : at[2]] = 255
    return picture


@pytest.mark.parametrize(
    ("size", "rotation", "aspect", "expected"),
    [
        ((640, 480), None, None, (400, 96, 560, 192)),
        ((323, 239), None, None, (200, 48, 280, 96)),
        ((323, 239), 90, None, (48, 43, 96, 123)),  # turned counter-clockwise: 239 x 323
        ((323, 239), 180, None, (43, 143, 123, 191)),
        ((323, 239), 270, None, (143, 200, 191, 280)),
        ((323, 239), None, Fraction(4, 3), (200 * 4 / 3, 48, 280 * 4 / 3, 96)),
    ],
)
def test_what_is_bright_is_found_in_pixels_of_the_upright_source(
    size: tuple[int, int],
    rotation: int | None,
    aspect: Fraction | None,
    expected: tuple[float, ...],
    tmp_path: Path,
) -> None:
    at = (400, 96, 560, 192) if size[0] == 640 else (200, 48, 280, 96)
    path = make_video(
        tmp_path / "clip.mp4",
        2,
        size=size,
        rotation=rotation,
        pixel_format="yuv444p",
        pixel_aspect=aspect,
        pattern=lambda _, size: bright(at, size),
    )
    model = bright_model((333, 251))
    for frame in read(path, (333, 251)):
        (box,) = model.step([frame], model.init_state()).objects[0]  # type: ignore[index]
        pixel = max(frame.size[0] / frame.rgb.shape[1], 1.0)  # type: ignore[index]
        assert box.label == "car"
        assert np.allclose(corners(box), expected, rtol=0, atol=2 * pixel + 1)


# --- what does not fit -----------------------------------------------------------------------


def test_types_and_frontends_that_there_are_not() -> None:
    with pytest.raises(ModelError, match="cannot be computed in float16"):
        random_model(dtype="float16")
    with pytest.raises(ModelError, match="does not name the frontend pixels"):
        ObjectModel(object_card(), random_network(), None)
    with pytest.raises(ModelError, match="2 labels for 3 classes"):
        ObjectModel(object_card(), random_network(classes=3), Pixels(BOX))


def test_bfloat16_gives_nearly_the_same(frames: list[VideoFrame]) -> None:
    model, other = random_model(), random_model(dtype="bfloat16")
    pairs = zip(
        run(model, frames[:3], model.init_state()),
        run(other, frames[:3], other.init_state()),
        strict=True,
    )
    for results in pairs:
        a, b = (max(box.score for box in r.objects[0]) for r in results)  # type: ignore[index]
        assert abs(a - b) < 0.05
