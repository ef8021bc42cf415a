"""Who is where, in made scenes whose truth is known: visits, crossings, counts, rules."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.core.places import Crossing, ZoneEvent, parse_place
from costream.core.records import Alert, Box
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


def visits_of(seen_inside: list[bool], inside: list[bool]) -> list[tuple[str, float]]:
    """The visits of one who walks, at ten steps a second: 0.3 s in make one, 0.5 s out end it."""
    found: list[tuple[str, float]] = []
    entered, counted, left = None, False, None
    for k, now in enumerate(inside):
        if now:
            left = None
        elif entered is not None:
            left = k if left is None else left
            if k - left >= 5:
                found += [("leave", left / 10)] if counted else []
                entered, counted, left = None, False, None
        if seen_inside[k]:
            entered = k if entered is None else entered
            if not counted and k - entered >= 3:
                counted = True
                found.append(("enter", entered / 10))
    return found


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
    false = set()  # boxes of nothing, for one or two steps, or a third after a moment
    for start in range(30, 570, 40):
        at, steps = (rng.uniform(0, 1000), rng.uniform(30, 70)), rng.choice(((0,), (0, 1), (0, 2)))
        false |= {(start + step, at) for step in steps}
    for k in range(600):
        seen = [n for n in range(4) if k not in hidden[n]]
        given = [standing(*paths[n][k]) for n in seen]
        nothing = [standing(*at, label="bag") for when, at in false if when == k]
        boxes = tracker.update(k / 10, given + nothing)
        for n, box in zip(seen, boxes, strict=False):
            assert owner.setdefault(box.id or 0, n) == n
        presence.update(k / 10, boxes, SIZE)
        found += presence.events
    assert len(owner) == 4
    assert {e.label for e in found} == {"person"}
    visits = [e for e in found if isinstance(e, ZoneEvent)]
    assert [e.time_s for e in visits] == sorted(e.time_s for e in visits)
    inside_now = {"hall": 0, "bed": 0}
    for e in visits:
        inside_now[e.zone] += {"enter": 1, "leave": -1, "dwell": 0}[e.event]
        assert e.now == inside_now[e.zone] == e.entered - e.left
    for number, person in owner.items():
        inside = [300 <= x <= 700 for x, _ in paths[person]]
        seen_inside = [now and k not in hidden[person] for k, now in enumerate(inside)]
        expected = visits_of(seen_inside, inside)
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


def zone_events(frames: list[list[Box]], rate_hz: float = 10.0) -> list[tuple[str, int, float]]:
    found = events(Presence((HALL,)), frames, rate_hz)
    return [(e.event, e.id, round(e.time_s, 6)) for e in found if isinstance(e, ZoneEvent)]


def test_a_box_of_nothing_is_not_a_visit() -> None:
    nothing = [standing(600, 300, 2, "bag")]
    walk = [[standing(500, 300, 1)]] * 20
    assert zone_events([*walk[:9], [*walk[9], *nothing], *walk[10:]]) == [
        ("enter", 1, 0.0), ("leave", 1, 1.9),
    ]  # fmt: skip
    assert zone_events([nothing, nothing, nothing, *[[]] * 20]) == []
    assert zone_events([nothing, [], [], nothing, *[[]] * 20]) == [
        ("enter", 2, 0.0), ("leave", 2, 0.3),
    ]  # fmt: skip
    # Steps that are far apart: two are enough, one is not.
    assert zone_events([[], nothing, [], []], rate_hz=1.0) == []
    assert zone_events([[], nothing, nothing, []], rate_hz=1.0) == [
        ("enter", 2, 1.0), ("leave", 2, 2.0),
    ]  # fmt: skip
    assert alerts("* in hall", [*[[]] * 5, nothing, *[[]] * 20]) == []
    assert alerts("count(* in hall) >= 1", [*[[]] * 5, nothing, *[[]] * 20]) == []


def test_who_is_in_a_zone_in_all_of_short_data_has_visited_it() -> None:
    def visits(frames: list[list[Box]]) -> list[str]:
        presence = Presence((HALL,))
        for k, boxes in enumerate(frames):
            presence.update(k / 10, boxes, SIZE)
        return [e.event for e in presence.reset(complete=True) if isinstance(e, ZoneEvent)]

    there, away = [standing(500, 300, 1)], [standing(900, 300, 1)]
    assert visits([there]) == ["enter", "leave"]  # a picture
    assert visits([there, there]) == ["enter", "leave"]
    assert visits([there, away]) == visits([away, there]) == visits([[], there]) == []
    assert visits([there, []]) == []


def test_records_of_visits_are_in_the_order_of_their_times() -> None:
    """One is lost from sight, which is known late; another comes in meanwhile."""
    frames = [[standing(400, 300, 1)]] * 20 + [[]] * 2 + [[standing(600, 300, 2)]] * 30
    assert zone_events(frames) == [
        ("enter", 1, 0.0), ("leave", 1, 1.9), ("enter", 2, 2.2), ("leave", 2, 5.1),
    ]  # fmt: skip
    presence, known = Presence(PLACES), {}
    for k, boxes in enumerate(frames):
        presence.update(k / 10, boxes, SIZE)
        known |= {(e.event, e.id): k / 10 for e in presence.events if isinstance(e, ZoneEvent)}
    assert known["enter", 1] == pytest.approx(0.3)  # at once
    assert known["enter", 2] == known["leave", 1] == pytest.approx(3.5)
    # A crossing that stays under way, on the line, holds nothing back for long.
    still = [standing(500 + min(10.0 * k - 50, 1), 300, 1) for k in range(60)]
    later = [standing(650, 400, 2)]
    presence, known = Presence(PLACES), {}
    for k in range(60):
        presence.update(k / 10, [still[k], *(later if k > 20 else ())], SIZE)
        known |= {e.id: k / 10 for e in presence.events if isinstance(e, ZoneEvent)}
    assert known[2] == pytest.approx(2.4)


@pytest.mark.parametrize("rate_hz", [0.2, 0.5, 1.0, 4.0])
def test_visits_are_known_however_far_apart_the_steps_are(rate_hz: float) -> None:
    tracker, presence, found = ObjectTracker(), Presence((HALL,)), []
    for k in range(8):
        boxes = [standing(500, 300)] if 2 <= k < 6 else []
        presence.update(k / rate_hz, tracker.update(k / rate_hz, boxes), SIZE)
        found += presence.events
    found += presence.reset()
    told = [(e.event, e.id, e.time_s) for e in found if e.event != "dwell"]
    assert told == [
        ("enter", 1, pytest.approx(2 / rate_hz)), ("leave", 1, pytest.approx(5 / rate_hz)),
    ]  # fmt: skip


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
        ("person in door until 0.5", "'for', 'every', "),
        ("car crosses gate for 5s", "'every'"),
        ("count(person) >= 0", "an integer of at least 1"),
        ("count(person in) >= 3", "the name of a zone"),
        ("count(person) >= 2.5", "an integer of at least 1"),
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
    inside = [[standing(500, 300, 1)]] * 4
    twice = [*inside, *[[standing(900, 300, 1)]] * 8, *inside]
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
    assert alert.time_s == pytest.approx(0.8)  # of the fifth, who came at 0.5 s
    assert len(alerts("count(person)>2", crowd)) == 1
    assert alerts("count(car) >= 1", crowd) == []


def test_a_place_outside_the_picture_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    far = parse_place("far=1200,0 1400,0 1400,40", "zone", "--zone")
    part = parse_place("part=900,0 1400,0 1400,40", "zone", "--zone")
    presence = Presence((HALL, far, part))
    for k in range(3):
        presence.update(k / 10, [standing(500, 300, 1)], SIZE)
    assert caplog.messages == ["far: outside the picture, which is 1000x500"]
