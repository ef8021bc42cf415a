"""Streams of one's own: frame by frame, saved and resumed, several of one model."""

from __future__ import annotations

import copy
import itertools
import time

import av
import numpy as np
import pytest
import torch

import costream
from costream.core.errors import ModelError, SourceError, UsageError
from costream.core.records import Compute, Gap, Prediction, Segment
from costream.sources.uris import open_source
from kit.paths import SAMPLES
from kit.recorded import alike


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    with av.open(str(SAMPLES / "room.mp4")) as container:
        decoded = itertools.islice(container.decode(video=0), 200)
        return [frame.to_ndarray(format="rgb24") for frame in decoded]


@pytest.fixture(scope="module")
def model() -> costream.LoadedModel:
    return costream.load_model("cooadtr")


def whole(stream, values) -> list:
    """Return the records of all values, without their costs."""
    records = [record for value in values for record in stream.step(value)] + stream.finish()
    return [record for record in records if not isinstance(record, Compute)]


def test_frame_by_frame_is_the_run(frames, model):
    of_run = [
        record
        for record in costream.detect(frames, model, rate_hz=25)
        if not isinstance(record, Compute)
    ]
    alike(whole(model.stream(rate_hz=25), frames), of_run)


def test_an_output_comes_with_its_frame(frames, model):
    with model.stream(rate_hz=8) as stream:
        assert [p.i for p in stream.step(frames[0]) if isinstance(p, Prediction)] == [0]
        assert [p.i for p in stream.step(frames[1]) if isinstance(p, Prediction)] == [1]
    assert stream.summary is not None
    assert stream.summary.steps == 2


@pytest.mark.parametrize("path", [None, 5, "", ".", "/dev/null"])
def test_what_is_not_a_file_to_save_to_or_load(path, frames, model):
    stream = model.stream(rate_hz=8)
    with pytest.raises(UsageError, match="file"):
        stream.load(path)
    stream.step(frames[0])
    with pytest.raises(UsageError, match="file"):
        stream.save(path)


def test_a_stream_that_an_error_ends_is_not_complete(frames, model):
    stream = model.stream(rate_hz=8)
    stream.step(frames[0])
    with pytest.raises(KeyError), stream:
        raise KeyError
    assert stream.summary is not None
    assert not stream.summary.complete
    assert stream.summary.steps == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["cooadtr", "eventful-vitdet"])
@pytest.mark.parametrize("cut", [1, 13])
def test_saved_and_loaded_it_continues_as_if_uninterrupted(frames, name, cut, tmp_path):
    model, frames = costream.load_model(name), frames[:50]
    expected = whole(model.stream(rate_hz=25), frames)
    first = model.stream(rate_hz=25)
    records = [record for frame in frames[:cut] for record in first.step(frame)]
    first.save(tmp_path / "state")
    second = model.stream(rate_hz=25)
    second.load(tmp_path / "state")
    records += whole(second, frames[cut:])
    assert [record for record in records if not isinstance(record, Compute)] == expected


@pytest.mark.long
def test_skeletons_with_their_own_times():
    source = open_source(str(SAMPLES / "moves.csv"))
    layout, model = source.open().layout, costream.load_model("costgcn")
    with model.stream(layout=layout) as stream:
        records = []
        for item in source.items():
            joints = np.where(item.scores[..., None] > 0, item.joints, np.nan)
            records += stream.step(joints, item.time_s)
        records += stream.finish()
    source.close()
    expected = costream.detect(SAMPLES / "moves.csv", model).collect()
    assert [r for r in records if isinstance(r, Segment)] == list(expected.segments)


@pytest.mark.parametrize("cut", [1, 37, 70])
def test_persons_continue_as_if_uninterrupted(cut, tmp_path):
    """Two persons, of whom one comes later; saved before and after, between two outputs too."""
    model, random = costream.load_model("costgcn"), np.random.default_rng(0)
    joints = random.standard_normal((90, 2, 25, 3)).cumsum(0) / 30
    joints += random.standard_normal((2, 25, 3))
    joints[:, 1] += 5
    joints[:30, 1] = np.nan
    expected = whole(model.stream(rate_hz=15, layout="ntu-25"), joints)
    assert {r.person for r in expected if isinstance(r, Prediction)} == {1, 2}
    first = model.stream(rate_hz=15, layout="ntu-25")
    records = [record for frame in joints[:cut] for record in first.step(frame)]
    first.save(tmp_path / "state")
    second = model.stream(rate_hz=15, layout="ntu-25")
    second.load(tmp_path / "state")
    records += whole(second, joints[cut:])
    assert [record for record in records if not isinstance(record, Compute)] == expected


def test_several_streams_of_one_model_do_not_touch_each_other(frames, model):
    alone = whole(model.stream(rate_hz=8), frames[:20])
    one, other = model.stream(rate_hz=8), model.stream(rate_hz=8)
    records = []
    for k in range(20):
        records += one.step(frames[k])
        other.step(frames[-1 - k])
    records += one.finish()
    assert [record for record in records if not isinstance(record, Compute)] == alone


def test_reset_starts_again(frames, model):
    stream = model.stream(rate_hz=8)
    first = whole(stream, frames[:20])
    stream.reset()
    assert whole(stream, frames[:20]) == first


def test_reset_forgets_what_was_loaded(frames, model, tmp_path):
    stream = model.stream(rate_hz=8)
    first = whole(stream, frames[:20])
    stream.reset()
    stream.step(frames[0])
    stream.save(tmp_path / "state")
    again = model.stream(rate_hz=8)
    again.load(tmp_path / "state")
    again.reset()
    assert whole(again, frames[:20]) == first


def test_time_without_frames_is_a_gap(frames, model):
    stream = model.stream()
    stream.step(frames[0], 0.0)
    gaps = [r for r in stream.step(frames[1], 60.0) if isinstance(r, Gap)]
    assert [(gap.start_s, gap.end_s) for gap in gaps] == [(0.0, 60.0)]


@pytest.mark.parametrize("saved", [False, True])
def test_frames_without_a_time_follow_those_with_one(frames, model, saved, tmp_path):
    stream = model.stream(rate_hz=8)
    first = stream.step(frames[0], 60.0) + stream.step(frames[1])
    if saved:
        stream.save(tmp_path / "state")
        stream = model.stream(rate_hz=8)
        stream.load(tmp_path / "state")
    records = first + stream.step(frames[2]) + stream.step(frames[3], 60.375)
    assert [(r.i, r.time_s) for r in records if isinstance(r, Prediction)] == [
        (0, 60.0),
        (1, 60.125),
        (2, 60.25),
        (3, 60.375),
    ]


def test_by_the_clock_too_frames_without_a_time_follow_those_with_one(frames, model):
    stream = model.stream()
    stream.step(frames[0], 1000.0)
    time.sleep(0.3)
    times = [r.time_s for r in stream.step(frames[1]) if isinstance(r, Prediction)]
    assert 1000.1 < times[-1] < 1100


def test_a_jump_of_any_length_is_one_gap(frames, model):
    stream = model.stream()
    stream.step(frames[0], 0.0)
    records = stream.step(frames[1], 1e11)
    assert [record.type for record in records] == ["gap", "prediction", "compute"]
    assert records[1].warmup


def test_a_frame_may_be_overwritten_after_its_step(frames, model):
    expected = whole(model.stream(rate_hz=25), frames[:60])
    buffer, stream, records = np.empty_like(frames[0]), model.stream(rate_hz=25), []
    for frame in frames[:60]:
        buffer[:] = frame
        records += stream.step(buffer)
    records += stream.finish()
    assert [record for record in records if not isinstance(record, Compute)] == expected


def test_mistakes_are_reported(frames, model, tmp_path):
    with pytest.raises(UsageError, match="does not apply to a stream"):
        model.stream(start=3)
    for option in ({"device": "cpu"}, {"dtype": "bfloat16"}, {"threads": 2}):
        with pytest.raises(UsageError, match=r"loaded already; pass it to load_model"):
            model.stream(**option)
    stream = model.stream()
    with pytest.raises(UsageError, match="before the first frame"):
        stream.save(tmp_path / "none")
    with pytest.raises(SourceError, match="takes video"):
        model.stream(layout="ntu-25").step(np.zeros((25, 3)))
    stream.step(frames[0], 5.0)
    with pytest.raises(UsageError, match="is before 5"):
        stream.step(frames[1], 4.0)
    with pytest.raises(UsageError, match="before the first frame"):
        stream.load(tmp_path / "none")
    for time_s in (float("inf"), float("nan"), "9", 1.7e12):  # the last is in milliseconds
        with pytest.raises(UsageError, match="is not a time in seconds"):
            stream.step(frames[1], time_s)
    assert stream.step(frames[1], 6.0)
    for wrong in ({"name": None}, {"weights": 3}, {"threads": 0}, {"threads": True}):
        with pytest.raises(UsageError, match="not"):
            costream.load_model(**wrong)
    with pytest.raises(ModelError, match="unknown device None"):
        costream.load_model(device=None)
    with pytest.raises(UsageError, match="a list of sinks"):
        model.stream(sinks=[object()])
    with pytest.raises(UsageError, match="above 0"):
        model.stream(rate_hz="25")
    stream.finish()
    with pytest.raises(UsageError, match="is finished"):
        stream.step(frames[2], 7.0)
    for value, hint in (
        (frames[0].astype("u2"), "convert it: frame.astype"),
        (256 * frames[0].astype("u2"), "256"),
        (frames[0] / 255, "255 \\* frame"),
        (frames[0] > 99, "255 \\* frame"),
        (2**16 * frames[0].astype(int), "to 255 and convert it: frame.astype"),
        (-frames[0].astype(int), "to 255 and convert it: frame.astype"),
    ):
        with pytest.raises(UsageError, match=hint):
            model.stream(rate_hz=25).step(value)


def test_tensors_of_half_precision_are_taken(model):
    row = torch.randn(model.network.input_width).bfloat16()
    expected = whole(model.stream(rate_hz=8), [row.float().numpy()])
    assert whole(model.stream(rate_hz=8), [row]) == expected
    with pytest.raises(UsageError, match="255 \\* frame"):
        model.stream(rate_hz=8).step(torch.zeros(40, 40, 3, dtype=torch.bfloat16))


def test_what_cannot_be_copied_says_how_to_continue(frames, model):
    stream = model.stream(rate_hz=8)
    stream.step(frames[0])
    with pytest.raises(TypeError, match="save it to a file"):
        copy.deepcopy(stream)


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "other model"])
def test_a_state_that_cannot_be_used_is_refused(frames, model, tmp_path, damage):
    path = tmp_path / "state"
    if damage != "missing":
        stream = costream.load_model("oadtr" if damage == "other model" else "cooadtr").stream()
        stream.step(frames[0], 0.0)
        stream.save(path)
    if damage == "text":
        path.write_text("no state")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match="state"):
        model.stream().load(path)
