"""Alerts of several feeds: options, records, actions, clips and shutdown."""

from __future__ import annotations

import re
import shlex
import sys
import threading
import time

import av
import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.core.records import Alert
from costream.runtime.alerts.alerts import KEYS, AlertOptions, Alerts, ClipSpan, read_options
from costream.runtime.alerts.rules import RuleLabels
from kit.media import make_video
from kit.runs import records, wait_until

CLASSES = RuleLabels(("nothing", "walk", "fall"), (0.5, 0.5, 0.5), frozenset({0}))
FALL = {None: np.array([0.05, 0.05, 0.9], np.float32)}
NONE = {None: np.array([0.9, 0.05, 0.05], np.float32)}


def play(ring, path, until_s):
    """Show a ring the first seconds of a video."""
    with av.open(str(path)) as container:
        ring.begin(container)
        for packet in container.demux():
            if packet.size and packet.dts * packet.time_base < until_s:
                ring.add(packet, float(packet.dts * packet.time_base))


@pytest.fixture
def video(tmp_path):
    return make_video(tmp_path / "feed.mp4", 200, keyframe_every=10)


def test_feeds_have_rules_and_actions_of_their_own(tmp_path):
    alerts = Alerts()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    alerts.add("door", read_options({"on": "fall", "append": str(first)}), CLASSES)
    both = {"on": ["fall>=0.8", "walk"], "append": [str(first), str(second)]}
    alerts.add("yard", read_options(both), CLASSES)
    alerts.add("roof", read_options({}), CLASSES)
    (alert,) = alerts.push("door", 3.0, FALL)
    assert alert == Alert(3.0, "fall", "fall", pytest.approx(0.9), 3.0)
    assert alerts.push("door", 4.0, FALL) == []
    assert len(alerts.push("yard", 3.0, FALL)) == 1
    assert alerts.push("roof", 3.0, FALL) == []
    alerts.close()
    assert [line["feed"] for line in records(first)] == ["door", "yard"]
    assert [line["feed"] for line in records(second)] == ["yard"]
    assert re.fullmatch(r"20..-..-..T..:..:..\....Z", records(first)[0]["at"])
    assert alerts.failed == 0


def test_gaps_and_feeds_that_are_away():
    alerts = Alerts()
    alerts.add("door", read_options({"on": ["fall for 2s", "gap>=5s"]}), CLASSES)
    assert alerts.push("door", 0.0, FALL) == []
    alerts.gap("door")
    assert alerts.push("door", 2.0, FALL) == []
    assert len(alerts.push("door", 4.0, FALL)) == 1
    assert alerts.state("door", 8.0, "stalled", 4.0) == []
    (alert,) = alerts.state("door", 9.0, "stalled", 5.0)
    assert (alert.rule, alert.since_s) == ("gap>=5s", 4.0)
    alerts.close()


def test_a_label_that_is_not_there_or_clips_without_a_folder():
    with pytest.raises(UsageError, match="no label 'run'"):
        Alerts().add("door", read_options({"on": "run"}), CLASSES)
    with pytest.raises(UsageError, match="clips need a folder"):
        Alerts().add("door", read_options({"on": "fall", "clips": True}), CLASSES)


def test_a_clip_is_named_at_once_and_waited_for_by_who_wants_it(tmp_path, video):
    alerts = Alerts(tmp_path / "clips")
    log, seen = tmp_path / "log.jsonl", tmp_path / "seen"
    code = "import os, sys; p = sys.argv[1]; open(sys.argv[2], 'w').write(str(os.path.getsize(p)))"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {{clip}} {seen}"
    options = {"on": "fall", "append": str(log), "run": command, "clips": "2,1"}
    alerts.add("rtsp://user:pass@cam/1", read_options(options), CLASSES)
    ring = alerts.ring("rtsp://user:pass@cam/1")
    play(ring, video, until_s=5.5)
    (alert,) = alerts.push("rtsp://user:pass@cam/1", 5.0, FALL)
    assert re.fullmatch(r"rtsp_______cam_1_20\d{6}T\d{6}Z_fall\.mkv", alert.clip)
    wait_until(lambda: log.exists() and log.read_text())
    assert not (tmp_path / "clips" / alert.clip).exists()  # its end has not come yet
    alerts.close(30.0)
    path = tmp_path / "clips" / alert.clip
    assert seen.read_text() == str(path.stat().st_size)
    assert records(log)[0]["clip"] == str(path)
    with av.open(str(path)) as container:
        assert len(list(container.decode(video=0))) == 138 - 70
    assert alerts.failed == 0


def test_clips_at_one_moment_have_names_of_their_own(tmp_path, video):
    alerts = Alerts(tmp_path / "clips")
    options = {"on": ["fall>=0.5", "fall>=0.6", "fall>=0.7"], "clips": "1,1"}
    alerts.add("door", read_options(options), CLASSES)
    play(alerts.ring("door"), video, until_s=8)
    names = {alert.clip for alert in alerts.push("door", 5.0, FALL)}
    alerts.close(30.0)
    assert len(names) == 3
    assert {path.name for path in (tmp_path / "clips").iterdir()} == names


def test_a_camera_that_is_down_shows_what_was_before(tmp_path, video):
    alerts = Alerts(tmp_path)
    alerts.add("door", read_options({"on": "gap>=60s", "clips": "2,1"}), CLASSES)
    play(alerts.ring("door"), video, until_s=6.0)
    (alert,) = alerts.state("door", 66.0, "waiting", 60.04)
    alerts.close(30.0)
    with av.open(str(tmp_path / alert.clip)) as container:
        assert len(list(container.decode(video=0))) == 150 - 90


def test_a_feed_without_packets_goes_without_clips(tmp_path, caplog):
    alerts = Alerts(tmp_path / "clips")
    log = tmp_path / "log.jsonl"
    options = {"on": "fall every 0", "append": str(log), "run": "true {clip}", "clips": True}
    alerts.add("mic", read_options(options), CLASSES)
    for k in range(3):
        (alert,) = alerts.push("mic", 2.0 * k, FALL)
        assert alert.clip is None
        alerts.push("mic", 2.0 * k + 1, NONE)
    alerts.close()
    assert len(records(log)) == 3
    assert "clip" not in records(log)[0]
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "mic: no clip: no packets are buffered for that time, or too many wait"
    ]


def test_a_clip_that_fails_is_counted_and_waited_for_in_vain(tmp_path, video):
    (tmp_path / "file").write_text("")
    out = tmp_path / "out"
    alerts = Alerts(tmp_path / "file")
    command = f"{shlex.quote(sys.executable)} -c \"open('{out}', 'w').write('x')\" {{clip}}"
    alerts.add("door", read_options({"on": "fall", "run": command, "clips": "1,1"}), CLASSES)
    play(alerts.ring("door"), video, until_s=8)
    alerts.push("door", 5.0, FALL)
    alerts.close(30.0)
    assert alerts.failed == 1
    assert out.read_text() == "x"


def test_actions_never_hold_the_stream_and_leave_nothing_behind(tmp_path, video):
    before = set(threading.enumerate())
    alerts = Alerts(tmp_path / "clips")
    sleep = f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(99)'"
    options = {
        "on": "fall every 0",
        "run": [sleep, f"{sleep} {{clip}}", f"{shlex.quote(sys.executable)} -c 1/0"],
        "post": "http://127.0.0.1:9/",
        "clips": "1,1",
    }
    alerts.add("door", read_options(options), CLASSES)
    play(alerts.ring("door"), video, until_s=8)
    began = time.monotonic()
    for k in range(100):
        assert len(alerts.push("door", 2.0 * k, FALL)) == 1
        alerts.push("door", 2.0 * k + 1, NONE)
    assert time.monotonic() - began < 20
    alerts.close(0.5)
    assert set(threading.enumerate()) == before
    assert alerts.failed >= 100


def test_none_one_or_several_of_each():
    for nothing in ({}, {**dict.fromkeys(KEYS), "url": "rtsp://x"}, {"on": (), "clips": False}):
        assert read_options(nothing) == AlertOptions()
    one = read_options({"on": "fall", "run": "echo {label}", "append": "a.jsonl"})
    several = read_options({"on": ["fall"], "run": ("echo {label}",), "append": ["a.jsonl"]})
    assert one == several
    assert [rule.text for rule in read_options({"on": ["fall", "lost"]}).on] == ["fall", "lost"]
    assert list(one.actions()) == [("run", "echo {label}"), ("append", "a.jsonl")]


@pytest.mark.parametrize(
    ("values", "span"),
    [
        ("5,10", (5, 10)),
        ("0:30, 1.5s", (30, 1.5)),
        ("7", (7, 7)),
        (True, (5, 5)),
        (8, (8, 8)),
        ([2, 3.5], (2, 3.5)),
        (["2s", 3], (2, 3)),
    ],
)
def test_the_span_of_clips(values, span):
    assert read_options({"on": "fall", "clips": values}).clips == ClipSpan(*span)


@pytest.mark.parametrize("values", ["", "5,", "5,5,5", "a,b", "-1,5", [], [1, 2, 3], -5, {"a": 1}])
def test_spans_that_are_none(values):
    with pytest.raises(UsageError, match="expected seconds before and after, not"):
        read_options({"on": "fall", "clips": values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"on": "fall>=2"}, "column 7"),
        ({"on": 3}, "on: must be a string or a list"),
        ({"on": ["fall", 3]}, "on: must be a string or a list"),
        ({"on": "fall", "run": "no-such-program-here"}, "^--run: .*no such program"),
        ({"on": "fall", "run": ""}, "^--run: no program is named"),
        ({"on": "fall", "post": "example.org"}, "^--post: not a URL"),
        ({"on": "fall", "append": "/"}, "^--append: .*not a file"),
        ({"on": "fall", "clips": "5,3600"}, "^--clips: at most 600 s"),
        ({"run": "echo"}, "^--run: actions or clips need a rule"),
        ({"clips": True}, "^--clips: actions or clips need a rule"),
    ],
)
def test_mistakes_are_found_before_anything_runs(values, message):
    with pytest.raises(UsageError, match=message):
        read_options(values)
