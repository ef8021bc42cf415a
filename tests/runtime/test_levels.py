"""Sound levels: known tones, A-weighting against its table, and rules about them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from costream.core.clock import SILENT_S
from costream.core.errors import UsageError
from costream.core.records import Alert, AudioBlock, Level, VideoFrame, to_json
from costream.core.schema import from_json
from costream.runtime.alerts.evaluator import RuleEvaluator
from costream.runtime.alerts.rules import Rule, RuleLabels, parse_rule
from costream.runtime.levels import LevelMeter
from kit.paths import SAMPLES
from kit.runs import records, refused, run

RATE = 48000
CLASSES = RuleLabels(("speech",), (0.5,), frozenset())


def tone(hz: float, db: float, number: int = 0, rate: int = RATE, size: float = 0.25) -> AudioBlock:
    """A block of a sine wave whose root mean square is ``db`` of full scale."""
    count = round(size * rate)
    times = (np.arange(count) + number * count) / rate
    wave = 10 ** (db / 20) * np.sqrt(2) * np.sin(2 * np.pi * hz * times)
    return AudioBlock(number, (number + 1) * size, wave.astype(np.float32))


@pytest.mark.parametrize("db", [-3.02, -30.0, -70.0])
def test_the_level_of_a_tone(db: float) -> None:
    meter = LevelMeter(100.0)
    meter.update(1.0, tone(440, db), RATE)
    assert meter.db == pytest.approx(db + 100, abs=0.02)
    assert meter.dba is None
    meter.update(2.0, AudioBlock(1, 2.0, np.zeros(100, np.float32)), RATE)
    assert meter.db == 4.0  # silence
    meter.reset()
    assert meter.db is None


@pytest.mark.parametrize(
    ("hz", "gain"),  # IEC 61672-1, table 3
    [(31.5, -39.4), (63, -26.2), (125, -16.1), (250, -8.6), (500, -3.2), (1000, 0.0),
     (2000, 1.2), (4000, 1.0), (8000, -1.1), (16000, -6.6)],
)  # fmt: skip
def test_a_weighting_is_that_of_the_standard(hz: float, gain: float) -> None:
    meter = LevelMeter(weighted=True)
    for number in range(3):
        meter.update(number * 0.25, tone(hz, -10.0, number), RATE)
    assert meter.dba == pytest.approx(-10.0 + gain, abs=0.6)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("level >= 70dB for 1s", {"kind": "level", "level": 70.0, "for_s": 1.0}),
        ("level>=-30.5 dBA every 0", {"kind": "level", "level": -30.5, "unit": "dBA",
                                      "every_s": 0.0}),
        ("any sound for 2s", {"kind": "sound", "for_s": 2.0}),
        ("'any sound'>=0.5", {"kind": "label", "above": 0.5}),
        ("level", {"kind": "label"}),
    ],
)  # fmt: skip
def test_what_rules_about_levels_mean(text: str, fields: dict) -> None:
    label = "any sound" if "any" in text else "level"
    assert parse_rule(text) == Rule(text, **{"label": label, **fields})


@pytest.mark.parametrize("text", ["level>=loud", "level>=1e3dB", "level>70dB", "level>=70Hz"])
def test_levels_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected ('>=' and )?a level"):
        parse_rule(text)


def alerts(text: str, levels: list[float]) -> list[Alert]:
    """The alerts of a rule, for a step of noise of each level every quarter of a second."""
    meter, rule = LevelMeter(100.0, weighted=True), parse_rule(text)
    firing, found = RuleEvaluator(rule, CLASSES), []
    for number, db in enumerate(levels):
        meter.update(number / 4, tone(1000, db - 100, number, 8000), 8000)
        found += firing.push(number / 4, {None: np.zeros(1)}, meter=meter)
    return found


def test_rules_about_levels_fire() -> None:
    (alert,) = alerts("level >= 70dB for 1s", [50.0] * 8 + [72.0] * 3 + [50.0] + [75.0] * 9)
    assert (alert.time_s, alert.since_s, alert.label) == (4.0, 3.0, "level")
    assert alert.level_db == pytest.approx(75.0, abs=0.1)
    assert len(alerts("level >= 70dBA", [50.0, 72.0])) == 1
    assert len(alerts("level >= 70dB every 0", [72.0, 50.0, 72.0])) == 2
    quiet, bang = [50.0 + 3 * (k % 2) for k in range(40)], [66.0]
    (alert,) = alerts("any sound", quiet + bang + quiet)
    assert alert.time_s == 10.0
    assert alerts("any sound", quiet) == []
    assert alerts("any sound", [66.0] * 8) == []  # nothing is known of the place
    assert alerts("any sound", [10.0] * 40 + [45.0]) == []  # hardly to be heard


def test_there_is_not_a_level_once_the_sound_has_ended() -> None:
    meter, firing = LevelMeter(), RuleEvaluator(parse_rule("level >= -30dB for 3s"), CLASSES)
    found, known = [], []
    picture = partial(np.zeros, (1, 1, 3), np.uint8)
    for number in range(40):  # steps of pictures; every other one brings a quarter of a second
        loud = number < 16 and number % 2 == 0
        item = (
            tone(1000, -10, number, 8000) if loud else VideoFrame(number, number / 8, None, picture)
        )
        meter.update(number / 8, item, 8000)
        known.append(meter.db is not None)
        found += firing.push(number / 8, {None: np.zeros(1)}, meter=meter)
    assert known == [number / 8 <= 14 / 8 + SILENT_S for number in range(40)]
    assert [alert.time_s for alert in found] == [3.0]
    meter.update(5.0, tone(1000, -10, 0, 8000), 8000)
    assert meter.db == pytest.approx(-10, abs=0.1)


def test_levels_of_files_and_feeds(tmp_path: Path) -> None:
    sample = SAMPLES / "street.ogg"
    options = (sample, "-m", "cosounds", "--levels", "dBA", "--full-scale", 90)
    lines = records(
        run("listen", "-m", "cotrans,cosounds", *options, "--end", 3, "-f", "jsonl").stdout
    )
    levels = [line for line in lines if line["type"] == "level"]
    steps = [line["time_s"] for line in lines if line["type"] == "prediction"]
    assert [line["time_s"] for line in levels] == steps
    assert all(-6 <= line["dba"] <= line["db"] + 2 <= 92 for line in levels)
    rules = ("--on", "level >= 1dBA", "-o", tmp_path, "--realtime", "--speed", 20)
    run("watch", "-m", "cooadtr", *options, *rules)
    alert = records(tmp_path / "street.ogg.jsonl", "alert")[0]
    assert (alert["label"], alert["rule"]) == ("level", "level >= 1dBA")
    assert 1 <= alert["level_db"] <= 90
    why = refused(
        2, "", "watch", "-m", "cooadtr", SAMPLES / "room.mp4", "--realtime", "--on", "any sound"
    )
    assert "--on 'any sound': cooadtr does not take sound" in why


def test_a_level_comes_back() -> None:
    level = Level(1.0, 62.5, 60.25)
    fields = to_json(level)
    assert from_json(fields.pop("type"), fields) == level
