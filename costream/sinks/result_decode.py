"""Decoding of JSON values into records: the inverse of ``records.to_json``.

Readers of ``costream/1`` ignore types and fields they do not know; fields that a writer left
out get their defaults. ``null`` for a number means that it was not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from costream.core.places import read_event
from costream.core.records import (
    STAGES,
    Alert,
    AnyRecord,
    Box,
    Compute,
    Fault,
    Gap,
    Head,
    Header,
    Level,
    Objects,
    Prediction,
    Scored,
    Segment,
    StageTimes,
    Summary,
)

Fields = dict[str, Any]
_T = TypeVar("_T")
_LATEST_S = 1e12
_MOST = 1e30  # no sum, or product, of numbers up to this overflows
_MOST_COUNTED = (1 << 63) - 1  # steps, frames, time stamps: as in files of media and arrays
_BUDGETS = ("budget_ms", "budget_macs", "budget_share")


def from_json(kind: str, fields: Fields) -> AnyRecord | None:
    """Return the record of the type ``kind``; None for an unknown type.

    Raise ValueError if a required field is missing or of the wrong type.
    """
    build = _BUILDERS.get(kind)
    if build is None:
        return None
    try:
        return build(fields)
    except (KeyError, TypeError, AttributeError, OverflowError, IndexError) as error:
        raise ValueError(f"a {kind} record without a valid {error}") from error


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"number ({value!r:.40})")
    return float(value)


def _optional(read: Callable[[Any], _T], value: Any) -> _T | None:
    return None if value is None else read(value)


def _time(value: Any) -> float:
    """Return a finite time."""
    seconds = _number(value)
    if not abs(seconds) <= _LATEST_S:
        raise TypeError("time")
    return seconds


def _finite(value: Any) -> float:
    """Return a number for sums; 0 where it was not finite."""
    number = _number(value)
    if not math.isfinite(number):
        return 0.0
    if abs(number) > _MOST:
        raise TypeError(f"number ({number:g})")
    return number


def _whole(value: Any, most: float = _MOST_COUNTED) -> int:
    number = _number(value)
    whole = value if isinstance(value, int) else int(number)
    if abs(whole) > most:
        raise TypeError(f"number ({number:g})")
    return whole


def _macs(value: Any) -> int:
    return _whole(value, _MOST)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text ({value!r:.40})")
    return value


def _top(pairs: Any) -> tuple[Scored, ...]:
    return tuple((_text(label), _number(score)) for label, score in pairs)


def _header(f: Fields) -> Header:
    options = f.get("options")
    return Header(
        version=str(f.get("version", "")),
        model=str(f.get("model", "")),
        weights_sha256=str(f.get("weights_sha256", "")),
        labels=tuple(_text(label) for label in f.get("labels") or ()),
        background=_background(f),
        rate_hz=_number(f.get("rate_hz")),
        delay_s=_number(f.get("delay_s", 0.0)),
        source=str(f.get("source", "")),
        kind=str(f.get("kind", "")),
        duration_s=_optional(_number, f.get("duration_s")),
        options=options if isinstance(options, dict) else {},
        schema=str(f.get("schema", "")),
        heads=tuple(map(_head, f["heads"])) if f.get("heads") else None,
        began=_optional(_text, f.get("began")),
        task=_optional(_text, f.get("task")),
        persons=_optional(_whole, f.get("persons")),
    )


def _background(f: Fields) -> str | None:
    """Return the label that is not an event; it is one of the labels."""
    background = _optional(_text, f.get("background"))
    if background is not None and background not in (f.get("labels") or ()):
        raise TypeError(f"background ({background!r:.40})")
    return background


def _head(f: Fields) -> Head:
    return Head(
        model=_text(f["model"]),
        weights_sha256=str(f.get("weights_sha256", "")),
        labels=tuple(_text(label) for label in f.get("labels") or ()),
        background=_background(f),
        delay_s=_number(f.get("delay_s", 0.0)),
        threshold=_number(f.get("threshold")),
        thresholds={_text(k): _number(v) for k, v in (f.get("thresholds") or {}).items()},
        smooth_s=_number(f.get("smooth_s", 0.0)),
        presence_s=_number(f.get("presence_s", 0.0)),
        temperature=_number(f.get("temperature", 1.0)),
        low=_optional(_number, f.get("low")),
        familiar=_optional(_number, f.get("familiar")),
    )


def _prediction(f: Fields) -> Prediction:
    scores, ahead = f.get("scores"), f.get("anticipation")
    return Prediction(
        i=_whole(f["i"]),
        time_s=_time(f["time_s"]),
        frame=_whole(f.get("frame", 0)),
        pts=_optional(_whole, f.get("pts")),
        top=_top(f["top"]),
        scores=None if scores is None else tuple(_number(score) for score in scores),
        anticipation=None if ahead is None else tuple(_top(step) for step in ahead),
        warmup=f.get("warmup") is True,
        fresh=f.get("fresh") is not False,
        model=_optional(_text, f.get("model")),
        familiarity=_optional(_number, f.get("familiarity")),
        person=_optional(_whole, f.get("person")),
        text=_optional(_text, f.get("text")),
    )


def _objects(f: Fields) -> Objects:
    return Objects(
        i=_whole(f["i"]),
        time_s=_time(f["time_s"]),
        frame=_whole(f.get("frame", 0)),
        pts=_optional(_whole, f.get("pts")),
        boxes=tuple(map(_box, f["boxes"])),
    )


def _box(values: Any) -> Box:
    *numbers, label = values[:6]
    x1, y1, x2, y2, score = map(_number, numbers)
    number = _whole(values[6]) if values[6:] else None
    zones = tuple(map(_text, values[7])) if values[7:] else ()
    return Box(x1, y1, x2, y2, score, _text(label), number, zones)


def _segment(f: Fields) -> Segment:
    start_s, end_s = _time(f["start_s"]), _time(f["end_s"])
    most = _optional(_whole, f.get("count"))
    score, model = _number(f.get("score")), _optional(_text, f.get("model"))
    person = _optional(_whole, f.get("person"))
    return Segment(start_s, end_s, _text(f["label"]), score, model, most, person)


def _compute(f: Fields) -> Compute:
    ms = f.get("ms") or {}
    return Compute(
        i=_whole(f["i"]),
        time_s=_time(f["time_s"]),
        macs=_macs(f["macs"]),
        dense_macs=_macs(f["dense_macs"]),
        ms=StageTimes(*(_finite(ms.get(name, 0.0)) for name in STAGES)),
        lag_s=_finite(f.get("lag_s", 0.0)),
        dropped=_whole(f.get("dropped", 0)),
        tokens=_optional(_whole, f.get("tokens")),
        **_budget(f),
    )


def _budget(f: Fields) -> dict[str, float | None]:
    """Return the budget of a step by field.

    Older results have only ``budget``. No step of a network has less than a million MACs, or takes
    as many milliseconds; a share of the steps is at most 1, and those models have no tokens.
    """
    known = {key: _optional(_number, f[key]) for key in _BUDGETS if f.get(key) is not None}
    budget = _optional(_number, f.get("budget"))
    if known or budget is None:
        return known
    if budget >= 1e6:
        return {"budget_macs": budget}
    is_share = budget <= 1 and f.get("tokens") is None
    return {"budget_share" if is_share else "budget_ms": budget}


def _gap(f: Fields) -> Gap:
    return Gap(_time(f["start_s"]), _time(f["end_s"]), str(f.get("reason", "")))


def _fault(f: Fields) -> Fault:
    return Fault(
        _optional(_time, f.get("time_s")),
        str(f.get("message", "")),
        f.get("fatal") is True,
        _whole(f.get("count", 1)),
    )


def _alert(f: Fields) -> Alert:
    return Alert(
        time_s=_time(f["time_s"]),
        rule=str(f.get("rule", "")),
        label=_text(f["label"]),
        score=_number(f.get("score")),
        since_s=_time(f.get("since_s", f["time_s"])),
        clip=_optional(_text, f.get("clip")),
        snapshot=_optional(_text, f.get("snapshot")),
        place=_optional(_text, f.get("place")),
        id=_optional(_whole, f.get("id")),
        level_db=_optional(_number, f.get("level_db")),
        person=_optional(_whole, f.get("person")),
        held=_optional(_whole, f.get("held")),
    )


def _level(f: Fields) -> Level:
    return Level(_time(f["time_s"]), _number(f["db"]), _optional(_number, f.get("dba")))


def _summary(f: Fields) -> Summary:
    return Summary(
        **{k: _whole(f.get(k, 0)) for k in ("steps", "segments", "dropped", "errors", "exit")},
        media_s=_finite(f.get("media_s", 0.0)),
        wall_s=_finite(f.get("wall_s", 0.0)),
        x_realtime=_optional(_number, f.get("x_realtime")),
        macs=_macs(f.get("macs", 0)),
        dense_macs=_macs(f.get("dense_macs", 0)),
        complete=f.get("complete") is True,
        drift_ppm=_optional(_number, f.get("drift_ppm")),
        network_macs=_optional(_macs, f.get("network_macs")),
        network_dense_macs=_optional(_macs, f.get("network_dense_macs")),
        unfamiliar_s=_optional(_number, f.get("unfamiliar_s")),
    )


_BUILDERS: dict[str, Callable[[Fields], AnyRecord]] = {
    "header": _header,
    "prediction": _prediction,
    "objects": _objects,
    "segment": _segment,
    "compute": _compute,
    "gap": _gap,
    "error": _fault,
    "alert": _alert,
    "level": _level,
    "zone": partial(read_event, "zone"),
    "crossing": partial(read_event, "crossing"),
    "summary": _summary,
}
