"""Clips in which somebody speaks, or that the model has not heard completely, are not written."""

from __future__ import annotations

import json
import threading

import av
import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.runtime.alerts.alerts import Alerts, read_options
from costream.runtime.alerts.rules import RuleLabels
from costream.runtime.alerts.speech import SpeechLog
from kit.media import make_video

LABELS = ("dog", "Child speech, kid speaking", "siren")


def log(spoken_s: tuple[float, ...] = (), until_s: float = 60.0, missing=()) -> SpeechLog:
    speech = SpeechLog(LABELS)
    for k in range(int(until_s * 2)):
        time_s = k / 2
        if not any(a < time_s < b for a, b in missing):
            speech.add(time_s, np.array([0.9, 0.5 if time_s in spoken_s else 0.01, np.nan]))
    return speech


@pytest.mark.parametrize(
    ("speech", "reason"),
    [
        (log(), ""),
        (log((9.0,)), ""),
        (log((12.5,)), "somebody speaks"),
        (log((20.5,)), "somebody speaks"),  # its beginning may be in the clip
        (log(missing=[(12, 14)]), ""),
        (log(missing=[(12, 16)]), "not all of it was heard by the model"),
        (log(missing=[(0, 11), (12, 60)]), "not all of it was heard by the model"),
    ],
)
def test_only_a_clip_that_was_heard_without_speech_is_kept(speech, reason):
    speech.close()
    assert speech.reason(10.5, 20.0) == reason


def test_the_end_of_a_clip_is_waited_for():
    speech = log(until_s=15.0)
    timer = threading.Timer(0.1, lambda: [speech.add(t, np.array([0, 0.9, 0])) for t in (16, 21)])
    timer.start()
    assert speech.reason(10.0, 20.0) == "somebody speaks"
    timer.join()


def test_a_model_without_speech_is_refused():
    with pytest.raises(UsageError, match="--no-speech-clips: the model does not recognise speech"):
        SpeechLog(("dog", "siren"))


@pytest.mark.parametrize("speaks", [False, True])
def test_alerts_write_clips_without_speech_only(speaks, tmp_path):
    classes = RuleLabels(("dog", "speech"), (0.5, 0.5), frozenset())
    alerts = Alerts(tmp_path / "clips")
    options = read_options({"on": "dog", "clips": "1,1", "append": str(tmp_path / "alerts")})
    alerts.add("door", options, classes, speech_clips=False)
    ring = alerts.ring("door")
    with av.open(str(make_video(tmp_path / "feed.mp4", 200, keyframe_every=10))) as container:
        ring.begin(container)
        for packet in container.demux():
            if packet.size:
                ring.add(packet, float(packet.dts * packet.time_base))
    for k in range(16):
        dog, speech = 0.9 * (k == 8), 0.4 * (speaks and k == 9)
        found = alerts.push("door", k / 2, {None: np.array([dog, speech])})
        assert [alert.clip for alert in found] == [None] * (k == 8)  # it may be withheld
    alerts.close(10.0)
    clips = [path.name for path in (tmp_path / "clips").glob("*")]
    assert len(clips) == (not speaks)
    assert [(note.time_s, note.clip) for _, note in alerts.notes()] == [(4.0, c) for c in clips]
    assert "clip" not in json.loads((tmp_path / "alerts").read_text())
    assert (tmp_path / "alerts").read_text().count("\n") == 1  # the alert itself is not held back
    assert alerts.failed == 0
