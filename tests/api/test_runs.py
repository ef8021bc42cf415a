"""detect, listen and run from Python: sources of every kind, options, errors, early ends."""

from __future__ import annotations

import itertools
import json
import os
import subprocess

import av
import numpy as np
import pytest

import costream
from costream.core.errors import CostreamError, SourceError, UsageError
from costream.core.records import Prediction, Segment
from costream.sources.base import SourceOptions
from kit.paths import SAMPLES
from kit.program import costream as command
from kit.recorded import alike

ROOM, STREET, MOVES = SAMPLES / "room.mp4", SAMPLES / "street.ogg", SAMPLES / "moves.csv"


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    """Return the first 16 s of the sample, uint8 [H, W, 3], 25 frames a second."""
    with av.open(str(ROOM)) as container:
        decoded = itertools.islice(container.decode(video=0), 400)
        return [frame.to_ndarray(format="rgb24") for frame in decoded]


@pytest.fixture(scope="module")
def model() -> costream.LoadedModel:
    return costream.load_model("cooadtr")


def test_a_file_has_the_records_of_the_command_line(model):
    result = costream.detect(ROOM, model, end=16, top_k=2).collect()
    done = command(
        "detect", "-m", "cooadtr", ROOM, "--end", "16", "--top-k", "2", "-f", "json", "-q"
    )
    expected = json.loads(done.stdout)
    for member in ("predictions", "segments", "gaps", "errors"):
        assert result.to_dict()[member] == expected[member]
    assert [s.label for s in result.segments] == [s["label"] for s in expected["segments"]]


def test_arrays_lists_and_generators_are_sources(frames, model):
    by_list = costream.detect(frames, model, rate_hz=25).collect()
    by_array = costream.detect(np.stack(frames), model, rate_hz=25).collect()
    live = costream.detect(iter(frames), model, rate_hz=25)
    taken = list(live)
    assert by_list.records[-1] == by_array.records[-1]
    assert by_list.predictions == by_array.predictions
    kinds = (Prediction, Segment)
    alike(
        [r for r in taken if isinstance(r, kinds)],
        [r for r in by_list.records if isinstance(r, kinds)],
    )
    assert live.summary is not None
    assert live.summary.complete
    # Frames that were decoded to RGB before they are scaled differ a little from those of files.
    of_file = costream.detect(ROOM, model, end=16).collect()
    assert [s.label for s in by_list.segments] == [s.label for s in of_file.segments]


def test_a_generator_yields_events_as_its_frames_come(frames, model):
    given = []

    def camera():
        for frame in frames[:100]:
            given.append(frame)
            yield frame

    first = next(costream.detect(camera(), model, rate_hz=25))
    assert isinstance(first, Prediction)
    assert len(given) < 5


def test_start_and_end_apply_to_arrays(frames, model):
    result = costream.detect(frames, model, rate_hz=25, start=2, end="0:04").collect()
    times = [p.time_s for p in result.predictions]
    assert (times[0], times[-1]) == (2.0, pytest.approx(4.0, abs=0.13))


def test_sound_as_one_array_and_in_pieces():
    model = costream.load_model("cosounds")
    with av.open(str(STREET)) as container:
        rate_hz = container.streams.audio[0].rate
        sound = np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1).T
    of_file = costream.listen(STREET, model).collect()
    whole = costream.listen(sound, model, rate_hz=rate_hz).collect()
    assert [p.top for p in whole.predictions] == [p.top for p in of_file.predictions]
    pieces = (sound[k : k + 1111] for k in range(0, len(sound), 1111))
    live = costream.listen(pieces, model, rate_hz=rate_hz).collect()
    assert [s.label for s in live.segments] == [s.label for s in of_file.segments]
    assert len(live.predictions) == len(of_file.predictions)


def test_a_loop_that_ends_early_finishes_the_files(tmp_path, model):
    with costream.detect(ROOM, model, output=tmp_path, format="json") as run:
        next(run)
    document = json.loads((tmp_path / "room.mp4.json").read_text())
    assert document["summary"]["complete"] is False


def test_sinks_of_your_own_get_everything(frames, model):
    class Counter:
        def __init__(self):
            self.seen = []

        def open(self, header):
            self.seen.append(header.model)

        def write(self, record):
            self.seen.append(type(record).__name__)

        def close(self, summary):
            self.seen.append(summary.steps)

    counter = Counter()
    result = costream.detect(frames[:50], model, rate_hz=25, sinks=[counter]).collect()
    assert counter.seen[0] == "cooadtr"
    assert counter.seen[-1] == result.summary.steps == 16
    assert len(counter.seen) == 2 + len(result.records)


def test_a_source_of_your_own(model):
    from costream.core.records import SourceInfo, VideoFrame

    class Grey:
        def open(self):
            return SourceInfo("grey", "grey", "video", 1.0, 8.0)

        def items(self):
            picture = np.full((96, 128, 3), 99, np.uint8)
            return (VideoFrame(i, i / 8, None, lambda: picture) for i in range(8))

        def stop(self):
            pass

        def close(self):
            pass

    assert costream.detect(Grey(), model).collect().summary.steps == 8
    assert costream.run(Grey(), model).steps == 8


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("room.mp4", "cooadtr"),
        ("room.mp4", "eventful-vitdet"),
        ("street.ogg", "cosounds"),
        ("moves.csv", "costgcn"),
        ("rows.npy", "cooadtr"),
    ],
)
def test_what_is_opened_yields_what_the_model_needs(name, model, tmp_path):
    path, network = SAMPLES / name, costream.load_model(model)
    if name == "rows.npy":
        path = tmp_path / name
        np.save(path, np.ones((20, 288), np.float32))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    way = costream.listen if name == "street.ogg" else costream.detect
    expected = way(path, network, end=2).collect().summary.steps
    for uri in (path, pipe):
        with subprocess.Popen(f"exec cat '{path}' > '{pipe}'", shell=True) as writer:
            try:
                source = costream.open_source(uri, SourceOptions(end_s=2.0))
                assert costream.run(source, network).steps == expected > 0
            finally:
                writer.kill()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda f: costream.detect("nope.mp4", model="cooadtr"), SourceError, "no such file"),
        (lambda f: costream.detect(f, model="cooadtr"), UsageError, "rate_hz=25"),
        (lambda f: costream.detect(f, rate_hz=0, model="cooadtr"), UsageError, "above 0"),
        (
            lambda f: costream.detect([], rate_hz=5, model="cooadtr"),
            UsageError,
            "there are no values",
        ),
        (
            lambda f: costream.detect(f, thresold=1, model="cooadtr"),
            UsageError,
            "did you mean threshold",
        ),
        (
            lambda f: costream.detect(f, rate_hz=5, threshold=2, model="cooadtr"),
            UsageError,
            "threshold: 2 is not",
        ),
        (
            lambda f: costream.detect(f, rate_hz=5, budget="1MMAC", model="encoder"),
            UsageError,
            "each step of encoder takes 385 MMAC",
        ),
        (
            lambda f: costream.detect(ROOM, start=5, end=2, model="cooadtr"),
            UsageError,
            "is not after",
        ),
        (
            lambda f: costream.detect(ROOM, format="csv", model="cooadtr"),
            UsageError,
            "output=FOLDER",
        ),
        (lambda f: costream.detect(ROOM, rate_hz=5, model="cooadtr"), UsageError, "fps="),
        (lambda f: costream.detect([f[0] / 255], rate_hz=5, model="cooadtr"), UsageError, "uint8"),
        (
            lambda f: costream.detect([f[0].T], rate_hz=5, model="cooadtr"),
            UsageError,
            "transpose(1, 2, 0)",
        ),
        (lambda f: costream.detect([f], rate_hz=5, model="cooadtr"), UsageError, "one by one"),
        (
            lambda f: costream.detect([["a"]], rate_hz=5, model="cooadtr"),
            UsageError,
            "not an array of numbers",
        ),
        (
            lambda f: costream.detect(iter(["a"]), rate_hz=5, model="cooadtr"),
            SourceError,
            "takes video, not text",
        ),
        (
            lambda f: costream.detect(["a.mp4"], model="cooadtr"),
            UsageError,
            "list of str is not a source; pass",
        ),
        (
            lambda f: costream.listen((ROOM,), model="cotrans,cosounds"),
            UsageError,
            "is not a source; pass a path",
        ),
        (
            lambda f: costream.detect(b"a.mp4", model="cooadtr"),
            UsageError,
            "bytes is not a source; pass a path",
        ),
        (lambda f: costream.read([b"a"], "costgcn"), UsageError, "an iterable of strings"),
        (
            lambda f: costream.detect(f, rate_hz="25", model="cooadtr"),
            UsageError,
            "above 0, not '25'",
        ),
        (
            lambda f: costream.detect(ROOM, sinks=[print], model="cooadtr"),
            UsageError,
            "a list of sinks",
        ),
        (
            lambda f: costream.detect(ROOM, sinks=None, model="cooadtr"),
            UsageError,
            "a list of sinks, not None",
        ),
        (lambda f: costream.run(ROOM, "cooadtr"), UsageError, "pass a path to costream.detect"),
        (lambda f: costream.run(costream.open_source(str(ROOM)), 3), UsageError, "a path, not 3"),
        (
            lambda f: costream.detect(ROOM, threads=10**30, model="cooadtr"),
            UsageError,
            "is out of range",
        ),
        (
            lambda f: costream.detect(ROOM, format=5, model="cooadtr"),
            UsageError,
            "format: 5 is not a valid",
        ),
        (
            lambda f: costream.detect(ROOM, only=1, model="cooadtr"),
            UsageError,
            "only: 1 is not a valid",
        ),
        (
            lambda f: costream.detect(ROOM, zone=1, model="cooadtr"),
            UsageError,
            "zone: 1 is not a valid",
        ),
        (lambda f: costream.read(["a"], "x", on=5), UsageError, "on: 5 is not a valid"),
        (lambda f: costream.open_source(5), UsageError, "a path or a URL, not 5"),
        (lambda f: costream.detect({}, model="cooadtr"), UsageError, "dict is not a source"),
        (lambda f: costream.detect(None, model="cooadtr"), UsageError, "NoneType is not a source"),
        (lambda f: costream.detect(STREET, model="cooadtr"), SourceError, "only sound"),
        (
            lambda f: costream.detect(np.zeros((9, 22, 3)), rate_hz=9, model="cooadtr"),
            UsageError,
            "layout=",
        ),
        (
            lambda f: costream.listen(np.zeros(99), model="cotrans,cosounds"),
            UsageError,
            "rate_hz=25",
        ),
        (
            lambda f: costream.listen(np.zeros((2, 999)), rate_hz=8000, model="cotrans,cosounds"),
            UsageError,
            "samples.T",
        ),
        (lambda f: costream.detect(f, "nomodel", rate_hz=5), CostreamError, "nomodel"),
    ],
)
def test_wrong_arguments_say_what_to_do(frames, call, error, words):
    with pytest.raises(error) as raised:
        list(call(frames[:3]))
    assert words in str(raised.value)
