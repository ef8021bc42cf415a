"""Streams of sound: times, gaps, saved states, samples that are none."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

import costream
from costream.core.errors import UsageError
from costream.core.records import Compute, Fault, Gap, Prediction, Segment
from costream.runtime.saved_state import read_state, write_state
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.paths import SAMPLES

RATE_HZ = 16_000


@pytest.fixture(scope="module")
def model() -> costream.LoadedModel:
    return costream.load_model("cosounds")


@pytest.fixture(scope="module")
def sound(model: costream.LoadedModel) -> np.ndarray:
    source = open_source(str(SAMPLES / "street.ogg"), SourceOptions(sound=model.network.info.sound))
    source.open()
    blocks = [item.samples for item in source.items()]
    source.close()
    return np.concatenate(blocks)[: 14 * RATE_HZ]


def times(records: list[Any]) -> list[float]:
    return [r.time_s for r in records if isinstance(r, Prediction)]


@pytest.mark.parametrize("name", ["cosounds", "cooadtr"])
def test_a_model_survives_pickle(name):
    model = costream.load_model(name)
    again = pickle.loads(pickle.dumps(model))
    run, path = (
        (costream.listen, "street.ogg") if model.info.sound else (costream.detect, "room.mp4")
    )
    first, second = (run(SAMPLES / path, m, end=6).collect() for m in (model, again))
    assert first.predictions == second.predictions


def test_a_piece_that_comes_late_ends_a_gap(model):
    stream, second = model.stream(rate_hz=RATE_HZ), np.zeros(RATE_HZ, np.float32)
    assert times(stream.step(second, 5.0)) == [5.25, 5.5, 5.75, 6.0]
    records = stream.step(second, 9.0)
    assert [(g.start_s, g.end_s) for g in records if isinstance(g, Gap)] == [(6.0, 9.0)]
    assert times(records) == [9.25, 9.5, 9.75, 10.0]
    assert times(stream.step(second)) == [10.25, 10.5, 10.75, 11.0]


def test_clocks_that_drift_and_jitter_are_followed(model, sound):
    """Pieces of 0.1 s with stamps off by up to 60 ms, of a clock that gains a hundredth."""
    random, stream = np.random.default_rng(0), model.stream(rate_hz=RATE_HZ)
    records = []
    for k in range(140):
        piece = sound[k * 1600 : (k + 1) * 1600]
        records += stream.step(piece, k * 0.101 + 0.3 + random.uniform(0, 0.06))
    assert not [r for r in records if isinstance(r, Gap | Fault)]
    found = times(records)
    assert len(found) == 56
    assert all(np.diff(found) > 0.15)
    assert found[-1] == pytest.approx(14.14 + 0.3, abs=0.15)


@pytest.mark.parametrize("seconds", [0.07, 1.1])
def test_saved_and_loaded_after_each_piece_it_is_the_same(model, sound, seconds, tmp_path):
    count = int(seconds * RATE_HZ)
    expected = [r for r in model.stream(rate_hz=RATE_HZ).step(sound) if not isinstance(r, Compute)]
    stream, records = model.stream(rate_hz=RATE_HZ), []
    for begin in range(0, len(sound), count):
        records += stream.step(sound[begin : begin + count])
        if seconds > 1 or begin % (8 * count) == 0:
            stream.save(tmp_path / "state")
            stream = model.stream(rate_hz=RATE_HZ)
            stream.load(tmp_path / "state")
    assert [r for r in records if not isinstance(r, Compute)] == expected


def test_a_state_is_for_as_many_channels_and_samples_per_second(model, sound, tmp_path):
    stream = model.stream(rate_hz=RATE_HZ)
    stream.step(sound[:5000])
    stream.save(tmp_path / "state")
    again = model.stream(rate_hz=RATE_HZ)
    again.load(tmp_path / "state")
    with pytest.raises(UsageError, match="2 channels after 1"):
        again.step(sound[:5000].reshape(-1, 2))
    with pytest.raises(UsageError, match=f"sound of {RATE_HZ} samples .* rate_hz={RATE_HZ}"):
        model.stream(rate_hz=RATE_HZ + 1).load(tmp_path / "state")


def test_what_comes_long_after_the_saved_state_ends_a_gap(model, sound, tmp_path):
    stream = model.stream(rate_hz=RATE_HZ)
    stream.step(sound[: RATE_HZ + 999], 2.0)
    stream.save(tmp_path / "state")
    again = model.stream(rate_hz=RATE_HZ)
    again.load(tmp_path / "state")
    records = again.step(sound[:RATE_HZ], 60.0)
    assert [(g.start_s, g.end_s) for g in records if isinstance(g, Gap)] == [(3.0, 60.0)]
    assert times(records) == [60.25, 60.5, 60.75, 61.0]


@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
@pytest.mark.parametrize(
    "begun", [[(0.1, 5.0)], [(1.0, 5.0), (0.1, 6.4)], [(1.0, 5.0), (0.1, 9.0)]]
)
def test_a_saved_state_keeps_the_times(model, rate_hz, begun, tmp_path):
    """Saved before the first step, in a piece that is a little late, and after a gap."""
    stream, second = model.stream(rate_hz=rate_hz), np.zeros(rate_hz, np.float32)
    for seconds, time_s in begun:
        stream.step(second[: int(seconds * rate_hz)], time_s)
    stream.save(tmp_path / "state")
    again = model.stream(rate_hz=rate_hz)
    again.load(tmp_path / "state")
    with pytest.raises(UsageError, match="is before"):
        again.step(second, begun[-1][1] - 0.1)
    assert times(again.step(second)) == pytest.approx(times(stream.step(second)))


def test_a_state_of_an_older_version_continues_at_its_last_step(model, sound, tmp_path):
    stream = model.stream(rate_hz=RATE_HZ)
    stream.step(sound[: RATE_HZ + 999], 2.0)
    stream.save(tmp_path / "state")
    about = {"model": model.card.name, "weights": model.info.weights_sha256}
    metadata, tensors = read_state(tmp_path / "state", about)
    old = json.loads(metadata["position"])
    del old["rest_s"], old["newest_s"], tensors["rest"]
    write_state(tmp_path / "old", {**about, "position": json.dumps(old)}, tensors)
    again = model.stream(rate_hz=RATE_HZ)
    again.load(tmp_path / "old")
    assert times(again.step(sound[:RATE_HZ])) == [3.25, 3.5, 3.75, 4.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 1e300])
def test_samples_that_are_none_are_silent_and_reported(model, sound, value):
    damaged = sound.astype(np.float64)
    damaged[5 * RATE_HZ // 2] = value
    expected = costream.listen(sound, model, rate_hz=RATE_HZ).collect()
    found = costream.listen(damaged, model, rate_hz=RATE_HZ).collect()
    assert [s.label for s in found.segments] == [s.label for s in expected.segments]
    assert len(found.predictions) == len(expected.predictions)
    assert found.summary.errors == 1
    [fault] = (r for r in found.records if isinstance(r, Fault))
    assert "damage at 2.500 s: 1 piece of sound with NaN samples" in fault.message


@pytest.mark.parametrize("asked", [{"start": 2.5}, {"end": 1.5}])
def test_samples_outside_what_is_asked_for_are_not_reported(model, sound, asked):
    damaged = sound.copy()
    damaged[2 * RATE_HZ + 5] = np.nan
    assert costream.listen(damaged, model, rate_hz=RATE_HZ, **asked).collect().summary.errors == 0


@pytest.mark.parametrize(
    ("samples", "hint"),
    [
        (np.zeros(100, np.int32), "scale it to -1 to 1"),
        (np.zeros(100, np.uint8), "scale it to -1 to 1"),
        (np.zeros((2, 1000), np.float32), "samples.T"),
        (np.zeros((1000, 0), np.float32), "one recording at a time"),
    ],
)
def test_hints_match_the_mistake(model, samples, hint):
    with pytest.raises(UsageError, match=hint):
        model.stream(rate_hz=RATE_HZ).step(samples)


def test_the_order_of_bytes_does_not_matter(model, sound):
    whole = (sound[:RATE_HZ] * 32767).astype(np.int16)
    expected = model.stream(rate_hz=RATE_HZ).step(whole)
    found = model.stream(rate_hz=RATE_HZ).step(whole.astype(">i2"))
    assert [r for r in found if isinstance(r, Prediction)] == [
        r for r in expected if isinstance(r, Prediction)
    ]


@pytest.mark.long
def test_a_file_is_opened_as_the_model_needs(model):
    for name, chosen in (("street.ogg", model), ("room.mp4", costream.load_model("cooadtr"))):
        path = str(SAMPLES / name)
        run = costream.listen if name.endswith("ogg") else costream.detect
        expected = run(path, chosen).collect()
        found: list[Segment] = []

        class Sink:
            def open(self, header: Any) -> None: ...

            def write(self, record: Any, found: list[Segment] = found) -> None:
                found += [record] if isinstance(record, Segment) else []

            def close(self, summary: Any) -> None: ...

        costream.run(costream.open_source(path), chosen, [Sink()])
        assert found == list(expected.segments)
