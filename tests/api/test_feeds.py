"""watch from Python: records of several feeds with their names, early ends, errors."""

from __future__ import annotations

import json
from collections import Counter

import pytest

import costream
from costream.core.errors import UsageError
from costream.core.records import Gap, Header, Prediction, Segment, Summary
from kit.media import excerpt
from kit.paths import SAMPLES
from kit.rtsp_server import RtspServer, endless, needs_rtsp


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return excerpt(SAMPLES / "room.mp4", tmp_path_factory.mktemp("clip") / "a.mp4", 3.0, 8.0)


@pytest.mark.slow
def test_files_as_feeds_have_the_records_of_detect(clip, tmp_path):
    feeds = costream.watch(
        [clip], "cooadtr", realtime=True, speed=4, on_late="block", output=tmp_path
    )
    taken = list(feeds)
    kinds = Counter(type(record) for _, record in taken)
    assert {feed for feed, _ in taken} == {"a.mp4"}
    assert (kinds[Header], kinds[Summary]) == (1, 1)
    expected = costream.detect(clip, model="cooadtr").collect()
    assert [r.label for _, r in taken if isinstance(r, Segment)] == [
        s.label for s in expected.segments
    ]
    assert kinds[Prediction] == len(expected.predictions)
    lines = [json.loads(line) for line in (tmp_path / "a.mp4.jsonl").read_text().splitlines()]
    assert lines[-1]["type"] == "summary"
    assert feeds.exit_code == 0
    assert feeds.status is not None


@needs_rtsp
def test_a_feed_that_is_lost_is_a_gap_and_a_loop_may_end(tmp_path):
    with (
        RtspServer({"door": endless()}) as server,
        costream.watch(
            server.url("door"), "cooadtr", timeout=5, output=tmp_path, write="all"
        ) as feeds,
    ):
        steps = 0
        for feed, record in feeds:
            assert feed.endswith("door")
            steps += isinstance(record, Prediction)
            if steps == 8:
                server.kill()
                server.start()
                steps += 1
            if isinstance(record, Gap):
                break
    last = json.loads(next(tmp_path.glob("*door.jsonl")).read_text().splitlines()[-1])
    assert (last["type"], last["complete"]) == ("summary", False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda clip: costream.watch(clip), "not a live feed"),
        (lambda clip: costream.watch([]), "no feed"),
        (lambda clip: costream.watch("rtsp://x/y", on="walk>2"), "walk>2"),
        (lambda clip: costream.watch("rtsp://x/y", max_lagg=1), "did you mean max_lag"),
        (lambda clip: costream.watch(["rtsp://x/y"], metrics="nonsense"), "nonsense"),
        (lambda clip: costream.watch(iter(["rtsp://x/y"]), metrics="nonsense"), "nonsense"),
        (lambda clip: costream.watch([b"rtsp://x/y"]), "feeds: a URL, a path or the number"),
        (lambda clip: costream.watch("rtsp://x/y", timeout=0), "timeout: must be greater than 0"),
        (lambda clip: costream.watch("rtsp://x/y", sinks=[]), "sinks: a function"),
        (lambda clip: costream.watch(None), "feeds: a URL, a path or the number"),
        (lambda clip: costream.watch(b"rtsp://x/y"), "feeds: a URL, a path or the number"),
        (lambda clip: costream.watch(iter([b"a"])), "feeds: a URL, a path or the number"),
        (lambda clip: costream.watch("rtsp://x/y", sinks=lambda feed: [feed]), "a list of sinks"),
    ],
)
def test_wrong_arguments(clip, call, words):
    with pytest.raises(UsageError) as raised:
        call(clip)
    assert words in str(raised.value)
