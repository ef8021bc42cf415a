"""Who is where, in made scenes whose truth is known: visits, crossings, counts, rules."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from costream.errors import UsageError
from costream.places import Crossing, ZoneEvent, parse_place
from costream.records import Alert, Box
from costream.runtime.alerts.evaluator import RuleEvaluator
from costream.runtime.alerts.rules import Rule, RuleLabels, parse_rule
from costream.runtime.presence import Presence
from costream.runtime.tracking import ObjectTracker

SIZE = (1000, 500)
HALL = parse_place("hall=0.3,0.2 0.7,0.2 0.7,1 0.3,1", "zone", "--zone")
BED = parse_place("bed=0,0 1000,0 1000,40 0,40", "zone", "--zone")
GATE = parse_place("gate=0.5,1 0.5,0", "line", "--line")  # to the right is in
PLACES = (HALL, BED, GATE)
CLASSES = RuleLabels(("person", "car"), (0.5, 0.5), frozenset())
NONE = {None: np.zeros(2)}


def standing(x: float, y: float, number: int | None = None, label: str = "person") -> Box:
    """A box of which the middle of the lower edge is at x, y."""
    return Box(x - 20, y - 90, x + 20, y, 0.9, label, number)


def events(presence: Presence, frames: list[list[Box]], rate_hz: float = 10.0) -> list[Any]:
    found = []
    for k, boxes in enumerate(frames):
        presence.update(k / rate_hz, boxes, SIZE)
        found += presence.events
    return found + presence.reset()


def test_a_walk_through_a_zone_and_over_a_line() -> None:
    frames = [[standing(10.0 * k, 300, 1)] for k in range(100)]
    found = events(Presence(PLACES), frames)
    told = [(round(e.time_s, 6), e.event, round(e.dwell_s, 6), e.now, e.entered, e.left)
            for e in found if isinstance(e, ZoneEvent)]  # fmt: skip
    assert told == [(3.0, "enter", 0.0, 1, 1, 0), (7.1, "leave", 4.1, 0, 1, 1)]
    (crossing,) = (e for e in found if isinstance(e, Crossing))
    assert crossing.direction == "in"
    assert (crossing.line, crossing.ins, crossing.outs) == ("gate", 1, 0)
    assert 5.0 <= crossing.time_s <= 5.1


def test_who_trembles_on_an_edge_stays_and_does_not_cross() -> None:
    rng = random.Random(1)
    frames = [[standing(500 + rng.uniform(-4, 4), 101 + rng.uniform(-4, 4), 1)] for _ in range(300)]
    found = events(Presence(PLACES), [[standing(480, 300, 1)], *frames])
    assert [e.event for e in found if isinstance(e, ZoneEvent)] == [
        "enter", "dwell", "dwell", "dwell", "leave",
    ]  # fmt: skip
    assert sum(e.ins - e.outs for e in found if isinstance(e, Crossing)) in (0, 1)
    assert sum(isinstance(e, Crossing) for e in found) <= 1


def walks(rng: random.Random, count: int, steps: int) -> list[list[tuple[float, float]]]:
    """Persons on rows of their own, who walk, stand and turn back."""
    paths = []
    for row in range(count):
        x, speed, path = rng.uniform(0, 1000), rng.choice((-8.0, 8.0)), []
        for _ in range(steps):
            if rng.random() < 0.02:
                speed = rng.choice((-8.0, 0.0, 8.0))
            x = min(1000.0, max(0.0, x + speed))
            path.append((x, 120.0 + 90 * row))
        paths.append(path)
    return paths


@pytest.mark.parametrize("seed", range(4))
def test_visits_and_counts_are_those_of_the_scene(seed: int) -> None:
    """With ids from the tracker, and each person out of sight for up to a second, often."""
    rng = random.Random(seed)
    paths = walks(rng, 4, 600)
    hidden = [set() for _ in paths]
    for number, path in enumerate(paths):
        for start in range(20, 580, 60):
            length = rng.randint(1, 9)
            inside = {300 <= path[k][0] <= 700 for k in range(start - 1, start + length + 1)}
            sides = {path[k][0] >= 500 for k in range(start - 1, start + length + 1)}
            steady = (
                len({path[k + 1][0] - path[k][0] for k in range(start - 7, start + length)}) == 1
            )
            if len(inside) == len(sides) == 1 and steady:
                hidden[number] |= set(range(start, start + length))
    tracker, presence, found = ObjectTracker(), Presence(PLACES), []
    owner: dict[int, int] = {}
    for k in range(600):
        seen = [n for n in range(4) if k not in hidden[n]]
        boxes = tracker.update(k / 10, [standing(*paths[n][k]) for n in seen])
        for n, box in zip(seen, boxes, strict=True):
            assert owner.setdefault(box.id or 0, n) == n
        presence.update(k / 10, boxes, SIZE)
        found += presence.events
    assert len(owner) == 4
    for number, person in owner.items():
        inside = [300 <= x <= 700 for x, _ in paths[person]]
        expected, there, since = [], False, 0
        for k, now in enumerate(inside):
            if now and not there:
                expected.append(("enter", k / 10))
                there = True
            since = since if not now and k and not inside[k - 1] else k
            if there and not now and k - since >= 5:
                expected.append(("leave", since / 10))
                there = False
        told = [(e.event, e.time_s) for e in found
                if isinstance(e, ZoneEvent) and e.id == number and e.event != "dwell"]  # fmt: skip
        assert told == [(event, pytest.approx(time_s)) for event, time_s in expected]
        sides = [x > 500 for x, _ in paths[person]]
        net = sum(1 if e.direction == "in" else -1 for e in found
                  if isinstance(e, Crossing) and e.id == number)  # fmt: skip
        assert net == sides[-1] - sides[0]
    counts = {c.place: c for c in presence.counts() if c.label == "person"}
    assert counts["hall"].now == counts["hall"].ins - counts["hall"].outs


def test_who_is_lost_in_a_zone_left_when_seen_last() -> None:
    frames = [[standing(500, 300, 1)]] * 20 + [[]] * 30
    found = [e for e in events(Presence((HALL,)), frames) if isinstance(e, ZoneEvent)]
    assert [(e.event, round(e.time_s, 6)) for e in found] == [("enter", 0.0), ("leave", 1.9)]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("person in door for 5s", {"kind": "in", "label": "person", "place": "door", "for_s": 5.0}),
        ("* in 'front door'", {"kind": "in", "label": "*", "place": "front door"}),
        (
            "person not in bed for 30min every 0",
            {"kind": "in", "label": "person", "place": "bed", "absent": True, "for_s": 1800.0,
             "every_s": 0.0},
        ),
        ("car crosses gate in", {"kind": "crosses", "label": "car", "place": "gate", "every_s": 0.0,
                                 "direction": "in"}),
        ("car crosses gate every 5s", {"kind": "crosses", "label": "car", "place": "gate",
                                       "every_s": 5.0}),
        ("count(person in hall) >= 10", {"kind": "count", "label": "person", "place": "hall",
                                         "number": 10}),
        ("count( car )>2 for 3s", {"kind": "count", "label": "car", "number": 3, "for_s": 3.0}),
        ("'person in door'>=0.5", {"kind": "label", "label": "person in door", "above": 0.5}),
    ],
)  # fmt: skip
def test_what_rules_about_places_mean(text: str, fields: dict[str, Any]) -> None:
    assert parse_rule(text) == Rule(text, **fields)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("person in", "the name of a zone or line"),
        ("in door", "a label"),
        ("person in door until 0.5", "'for' or 'every'"),
        ("car crosses gate for 5s", "'every'"),
        ("count(person) >= 0", "a whole number from 1 on"),
        ("count(person in) >= 3", "the name of a zone"),
        ("count(person) >= 2.5", "a whole number"),
    ],
)
def test_mistakes_in_rules_about_places(text: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("person in yard", "there is no zone 'yard'; there are hall, bed"),
        ("person in gate", "there is no zone 'gate'"),
        ("car crosses hall", "there is no line 'hall'; there are gate"),
        ("dog in hall", "no label 'dog'"),
    ],
)
def test_places_that_are_not_there(text: str, message: str) -> None:
    kinds = {place.name: place.kind for place in PLACES}
    with pytest.raises(UsageError, match=message):
        RuleEvaluator(parse_rule(text), CLASSES, kinds)
    with pytest.raises(UsageError, match="does not detect objects"):
        RuleEvaluator(parse_rule("person in hall"), CLASSES, None)


def alerts(text: str, frames: list[list[Box]]) -> list[Alert]:
    presence, kinds = Presence(PLACES), {place.name: place.kind for place in PLACES}
    firing, found = RuleEvaluator(parse_rule(text), CLASSES, kinds), []
    for k, boxes in enumerate(frames):
        presence.update(k / 10, boxes, SIZE)
        found += firing.push(k / 10, NONE, presence)
    return found


def test_rules_about_zones_fire_for_each_visit_once() -> None:
    walk = [[standing(10.0 * k, 300, 1), standing(900, 300, 2, "car")] for k in range(100)]
    (alert,) = alerts("person in hall for 2s", walk)
    assert (alert.time_s, alert.since_s) == (pytest.approx(5.0), pytest.approx(3.0))
    assert (alert.label, alert.score, alert.place, alert.id) == ("person", 0.9, "hall", 1)
    assert alerts("person in hall for 5s", walk) == []
    assert alerts("car in hall", walk) == []
    assert len(alerts("* in hall", walk)) == 1
    twice = [[standing(500, 300, 1)], *[[standing(900, 300, 1)]] * 8, [standing(500, 300, 1)]]
    assert len(alerts("person in hall every 0", twice)) == 2
    assert len(alerts("person in hall", twice)) == 1  # within half a minute
    both = [[standing(400, 300, 1), standing(600, 300, 2)]] * 40
    assert [a.id for a in alerts("person in hall for 1s every 2s", both)] == [1, 2]


def test_rules_about_absence_crossings_and_counts() -> None:
    here, away = [standing(500, 30, 1)], [standing(500, 400, 1)]
    found = alerts("person not in bed for 2s every 0", [here] * 10 + [away] * 40 + [here] * 5)
    assert [round(a.time_s, 6) for a in found] == [3.5]  # after the half second it may tremble
    assert found[0].since_s == pytest.approx(1.5)
    back = [[standing(10.0 * (60 - abs(k - 30)), 300, 1)] for k in range(61)]  # 300 to 600 and back
    assert [a.place for a in alerts("person crosses gate", back)] == ["gate", "gate"]
    assert len(alerts("person crosses gate in", back)) == 1
    assert alerts("car crosses gate", back) == []
    crowd = [[standing(350 + 50.0 * n, 300, n) for n in range(min(k, 6))] for k in range(12)]
    (alert,) = alerts("count(person in hall) >= 5", crowd)
    assert alert.time_s == pytest.approx(0.5)
    assert len(alerts("count(person)>2", crowd)) == 1
    assert alerts("count(car) >= 1", crowd) == []


def test_a_place_outside_the_picture_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    far = parse_place("far=1200,0 1400,0 1400,40", "zone", "--zone")
    part = parse_place("part=900,0 1400,0 1400,40", "zone", "--zone")
    presence = Presence((HALL, far, part))
    for k in range(3):
        presence.update(k / 10, [standing(500, 300, 1)], SIZE)
    assert caplog.messages == ["far: outside the picture, which is 1000x500"]
