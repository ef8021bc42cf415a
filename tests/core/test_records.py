"""Records as JSON: plain values, absent fields, budgets."""

from __future__ import annotations

import dataclasses
import json
import typing

import numpy as np
import pytest

from costream.core import records
from costream.core.places import Crossing, ZoneEvent
from costream.core.records import (
    Alert,
    AlertNote,
    Box,
    Compute,
    Fault,
    Gap,
    Level,
    Objects,
    Prediction,
    Segment,
    StageTimes,
    to_json,
)
from costream.core.schema import from_json


def text(record):
    return json.dumps(to_json(record), allow_nan=False)


def test_optional_fields_are_left_out():
    out = to_json(Prediction(i=0, time_s=0.0, frame=0, pts=None, top=(("walk", 0.5),)))
    assert set(out) == {"type", "i", "time_s", "frame", "pts", "top", "warmup", "fresh"}
    assert out["pts"] is None
    assert out["top"] == [["walk", 0.5]]


def test_numpy_values_become_plain_ones():
    top = (("a", np.float32(0.1234567)),)
    scores = tuple(np.array([0.1234567, np.nan], np.float32))
    out = json.loads(
        text(Prediction(np.int64(3), np.float64(1 / 3), 0, np.int32(7), top, scores=scores))
    )
    assert (out["i"], out["pts"], out["time_s"]) == (3, 7, 0.333333)
    assert out["top"] == [["a", 0.123457]]
    assert out["scores"] == [0.123457, None]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_is_null(value):
    assert json.loads(text(Segment(0.0, 1.0, "a", value)))["score"] is None


def test_every_record_has_its_own_type_name():
    kinds = [c.type for c in vars(records).values() if hasattr(c, "type") and isinstance(c, type)]
    assert sorted(kinds) == sorted(set(kinds))
    assert set(kinds) == {
        "header",
        "prediction",
        "objects",
        "segment",
        "compute",
        "gap",
        "error",
        "summary",
        "alert",
        "note",
        "zone",
        "crossing",
        "level",
    }


def test_boxes_are_short_rows():
    known = Box(1.0, 2.5, 30.0, 40.0, 0.75, "person", id=4)
    out = to_json(Objects(0, 0.0, 0, None, (known, dataclasses.replace(known, id=None))))
    assert out["boxes"] == [
        [1.0, 2.5, 30.0, 40.0, 0.75, "person", 4],
        [1.0, 2.5, 30.0, 40.0, 0.75, "person"],
    ]


def test_nested_records():
    out = to_json(Compute(0, 0.0, 5, 10, StageTimes(1.0, 2.0, 3.0, 4.0)))
    assert out["ms"] == {"decode": 1.0, "frontend": 2.0, "network": 3.0, "sink": 4.0}
    assert to_json(Gap(1.0, 2.0, "late")) == {
        "type": "gap",
        "start_s": 1.0,
        "end_s": 2.0,
        "reason": "late",
    }
    assert to_json(Fault(None, "cut", fatal=True))["fatal"] is True


def test_records_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Segment(0.0, 1.0, "a", 0.5).label = "b"


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"macs": 10**300}, "macs"), ({"ms": {"decode": 1e308}}, "ms.decode"), ({"i": 1 << 63}, "i")],
)
def test_numbers_whose_sums_would_overflow_are_refused(changed, name):
    fields = {"i": 0, "time_s": 0.0, "macs": 1, "dense_macs": 1}
    assert from_json("compute", fields).macs == 1
    with pytest.raises(ValueError, match=rf"a compute record without a valid {name} \("):
        from_json("compute", fields | changed)


@pytest.mark.parametrize("kind", ["header", "head"])
def test_a_background_is_one_of_the_labels(kind):
    head = {"model": "m", "labels": ["none", "walk"], "background": "none", "threshold": 0.5}
    header = {**head, "rate_hz": 8, "heads": [head]}
    assert from_json("header", header).heads[0].background == "none"
    (header if kind == "header" else head)["background"] = "sit"
    with pytest.raises(ValueError, match="without a valid background"):
        from_json("header", header)


@pytest.mark.parametrize("name", ["budget_ms", "budget_macs", "budget_share"])
def test_a_budget_is_written_with_its_unit_and_without(name):
    compute = Compute(0, 0.0, 10, 20, StageTimes(1, 1, 1, 1), **{name: 0.5})
    fields = to_json(compute)
    assert {key: value for key, value in fields.items() if "budget" in key} == {
        name: 0.5,
        "budget": 0.5,
    }
    assert from_json("compute", fields) == compute


@pytest.mark.parametrize(
    ("tokens", "budget", "name"),
    [(12, 40.0, "budget_ms"), (12, 0.5, "budget_ms"), (None, 0.5, "budget_share")]
    + [(tokens, 2.5e9, "budget_macs") for tokens in (None, 12)]
    + [(None, 40.0, "budget_ms")],
)
def test_a_budget_of_older_results_gets_its_unit(tokens, budget, name):
    fields = {"i": 0, "time_s": 0.0, "macs": 1, "dense_macs": 1, "tokens": tokens}
    record = from_json("compute", {**fields, "budget": budget})
    assert getattr(record, name) == record.budget == budget


NASTY = "a\nb\x1b[31m"
LINES = (
    (Gap(1.0, 2.5, "lost"), "0:01.00 - 0:02.50  no data: lost"),
    (Fault(None, NASTY), "error: a b?[31m"),
    (Prediction(0, 3.25, 0, None, (("walk", 0.95), ("sit", 0.03))), "0:03.25  walk 0.95  sit 0.03"),
    (Prediction(0, 3.25, 0, None, ((NASTY, 0.9),), model="m", person=2, text="x\ny"), None),
    (Objects(0, 1.0, 0, None, ()), "0:01.00  nothing"),
    (Objects(0, 1.0, 0, None, (Box(0, 0, 1, 1, 0.9, "car"),) * 2), "0:01.00  2 car"),
    (Segment(3.25, 6.875, "walk", 0.951), "0:03.25 - 0:06.88  walk  0.95"),
    (Segment(3661.0, 3662.0, NASTY, 0.5, "m", 3, 1), None),
    (Compute(4, 0.5, 56_400_000, 80_000_000, StageTimes(1.0, 2.0, 0.5, 1.0)), None),
    (Alert(1.0, "fall>=0.8", "fall", 0.91, 0.5), "0:01.00  alert: fall 0.91  (fall>=0.8)"),
    (AlertNote(1.0, "fall", "fall", description="A man lies."), "0:01.00  fall: A man lies."),
    (Level(1.0, -30.0, -33.3), "0:01.00  level -30.0 dB, -33.3 dBA"),
    (ZoneEvent(1.0, "door", "enter", "person", 7, 0.0, 1, 1, 0), None),
    (Crossing(1.0, "gate", "in", "person", 7, 1, 0), "0:01.00  person #7: in over gate"),
)


@pytest.mark.parametrize(("record", "line"), LINES, ids=lambda x: type(x).__name__)
def test_a_record_as_text_is_one_line(record, line):
    text = str(record)
    assert line in (None, text)
    assert text.isprintable()


def test_every_record_can_be_read():
    kinds = {type(record) for record, _ in LINES}
    assert kinds == set(typing.get_args(records.Record))


def test_notebooks_draw_scores_and_boxes_without_markup_of_labels():
    scored = Prediction(0, 1.5, 0, None, (("<b>walk", 0.75), ("sit", float("nan"))))
    assert scored._repr_html_().count("<tr>") == 2
    assert "width:9.00em" in scored._repr_html_()
    drawn = Objects(0, 1.5, 0, None, (Box(10.0, 20.0, 40.0, 60.0, 0.9, "<i>cat"),))._repr_html_()
    assert 'x="10.0" y="20.0" width="30.0" height="40.0"' in drawn
    assert "<svg" not in Objects(0, 1.5, 0, None, ())._repr_html_()
    assert "&lt;" in drawn
    assert "<i>" not in drawn + scored._repr_html_()
    assert "<b>" not in scored._repr_html_()
