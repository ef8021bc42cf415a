"""Alert rules: syntax, the place of a mistake, and firing against a reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.core.hysteresis import LastingPresence
from costream.core.records import Alert
from costream.runtime.alerts.evaluator import RuleEvaluator
from costream.runtime.alerts.rules import Rule, RuleLabels, parse_rule, targets
from costream.weights_io.card import Card, Timeline

CLASSES = RuleLabels(("nothing", "walk", "fall"), (0.5, 0.5, 0.5), frozenset({0}))


def card(name, labels, background=None):
    return Card(name, "", "", {}, labels, rate_hz=4.0, background=background)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("fall", {"label": "fall"}),
        ("fall>=0.8 for 2s", {"label": "fall", "above": 0.8, "for_s": 2.0}),
        ("fall>.8", {"label": "fall", "above": 0.8, "strict": True}),
        (
            " sit down  >= 1 every 1:30 until 0.2 for 0.5 ",
            {"label": "sit down", "above": 1.0, "every_s": 90.0, "until": 0.2, "for_s": 0.5},
        ),
        ("'a > b' for 2s", {"label": "a > b", "for_s": 2.0}),
        ('"wait for it">=0.5', {"label": "wait for it", "above": 0.5}),
        ("dog's bark", {"label": "dog's bark"}),
        ("落下>=0.5", {"label": "落下", "above": 0.5}),
        ("* every 0", {"label": "*", "every_s": 0.0}),
        ("gap>=10s", {"kind": "gap", "for_s": 10.0}),
        ("gap >= 0:10 every 5s", {"kind": "gap", "for_s": 10.0, "every_s": 5.0}),
        ("lost", {"kind": "lost"}),
        ("lost for 1h30m every 2d", {"kind": "lost", "for_s": 5400.0, "every_s": 172_800.0}),
        ("lost for 5s", {"kind": "lost", "for_s": 5.0}),
        ("'lost'", {"label": "lost"}),
        ("'gap'>=0.5", {"label": "gap", "above": 0.5}),
        ("lost child>=0.5", {"label": "lost child", "above": 0.5}),
    ],
)
def test_what_rules_mean(text, fields):
    assert parse_rule(text) == Rule(text, **{"kind": "label", **fields})


@pytest.mark.parametrize(
    ("text", "column", "wanted"),
    [
        ("", 1, "a label"),
        (">=0.8", 1, "a label"),
        ("for 2s", 1, "a label"),
        ("fall>=", 7, "a probability"),
        ("fall>=80", 7, "from 0 to 1, not '80'"),
        ("fall>=nan", 7, "from 0 to 1"),
        (
            "fall >= 0.8 0.9",
            13,
            "'between', 'on', 'not on', 'at most' or 'again after', not '0.9'",
        ),
        ("fall for", 9, "a time"),
        ("fall for 2w", 10, "a time, as in 2s or 1h30m, not '2w'"),
        ("fall for 2s for 3s", 13, "'until', 'every', "),
        ("fall until 2s", 12, "a probability"),
        ("'fall>=0.8", 1, "a closing quote"),
        ("gap", 4, "'>=' and a time"),
        ("gap>=0s", 6, "a time above 0"),
        ("gap>=2s until 0.5", 9, "'every'"),
        ("lost>=2s", 5, "'for', 'every', "),
    ],
)
def test_where_a_mistake_is(text, column, wanted):
    with pytest.raises(UsageError) as error:
        parse_rule(text)
    assert str(error.value).startswith(f"--on {text!r}, column {column}: expected")
    assert wanted in str(error.value)


@given(st.text(st.sampled_from("fal>=.08 2s'\"*:") | st.characters(), max_size=25))
def test_any_text_is_a_rule_or_a_usage_error(text):
    try:
        rule = parse_rule(text)
    except UsageError:
        return
    assert rule.text == text
    assert rule.label or rule.kind != "label"


def test_an_unknown_label_says_which_there_are():
    with pytest.raises(UsageError) as error:
        targets(parse_rule("run>=0.8"), CLASSES)
    it_has = "the model has no label 'run'; it has fall, nothing, walk"
    assert str(error.value) == f"--on 'run>=0.8': {it_has}"


def test_bounds_come_from_the_rule_or_from_the_model():
    (target,) = targets(parse_rule("fall"), CLASSES)
    assert (target.index, target.above, target.until) == (2, 0.5, pytest.approx(0.3))
    (target,) = targets(parse_rule("fall>=0.8 until 0.1"), CLASSES)
    assert (target.above, target.until) == (0.8, 0.1)
    with pytest.raises(UsageError, match="'until' is above"):
        targets(parse_rule("fall until 0.6"), CLASSES)


def test_the_star_is_all_but_the_background():
    assert [t.label for t in targets(parse_rule("*"), CLASSES)] == ["walk", "fall"]
    (target,) = targets(parse_rule("nothing>=0.9"), CLASSES)  # by name it may be asked for
    assert target.index == 0


def test_several_heads():
    classes = RuleLabels.of(
        [
            (card("a", ("silence", "dog"), "silence"), Timeline(threshold=0.4)),
            (card("b", ("rock", "dog")), Timeline(threshold=0.7)),
        ]
    )
    found = targets(parse_rule("dog"), classes)
    assert [(t.index, t.above) for t in found] == [(1, 0.4), (3, 0.7)]
    assert [t.index for t in targets(parse_rule("*"), classes)] == [1, 2, 3]


# --- firing ----------------------------------------------------------------------------------

RATE_HZ = 10.0
SLACK_S = 1e-6


def run(rule, events):
    """Events: scores of the classes at a step, or None where data are missing."""
    firing = RuleEvaluator(parse_rule(rule), CLASSES)
    alerts = []
    for i, event in enumerate(events):
        if event is None:
            firing.gap()
        else:
            alerts += firing.push(i / RATE_HZ, {None: np.asarray(event, np.float32)})
    return alerts


def fall(pattern):
    """One letter a step: the score of "fall" in tenths; a bar is a gap."""
    return [None if c == "|" else (0.0, 0.0, int(c) / 10 + 0.01) for c in pattern]


@pytest.mark.parametrize(
    ("rule", "pattern", "times"),
    [
        ("fall>=0.8", "0089990", [0.2]),
        ("fall>=0.8 for 0.2", "0898980989", [0.3]),  # held anew, but not armed below 0.48 in time
        ("fall>=0.8 for 0.2s every 0", "0999099909", [0.3, 0.7]),
        ("fall>=0.8 every 0", "9590949", [0.0, 0.4, 0.6]),  # 0.51 arms no more than 0.48 does
        ("fall>=0.8 until 0.1 every 0", "9590949", [0.0, 0.4]),
        ("fall>=0.8 every 0.5", "9090909090909", [0.0, 0.6, 1.2]),
        ("fall>=0.8 every 0.5", "9099999999", [0.0, 0.5]),  # it still holds: late, not lost
        ("fall>=0.8 for 0.3 every 0", "099|999|99999", [1.1]),
        ("fall>=0.8 every 0", "99|99", [0.0, 0.3]),
        ("fall", "4569", [0.1]),
    ],
)
def test_examples(rule, pattern, times):
    assert [round(a.time_s, 6) for a in run(rule, fall(pattern))] == times


PRESENCE_S = 2.0
# A second of somebody who falls at once, and ten of somebody who falls after four.
PASSING = [(1, 0, 0)] * 20 + [(0, 0, 1)] * 10 + [(1, 0, 0)] * 20
STAYING = [(1, 0, 0)] * 20 + [(0, 1, 0)] * 40 + [(0, 0, 1)] * 60


def lasting(rule, events, presence_s=PRESENCE_S, before=()):
    """Return the times of alerts; ``before``: labels of another head, without presence."""
    about = card("a", ("nothing", "walk", "fall"), "nothing")
    others = [(card("b", before), Timeline())] if before else []
    timeline = Timeline(threshold=0.8, presence_s=presence_s)
    firing = RuleEvaluator(parse_rule(rule), RuleLabels.of([*others, (about, timeline)]))
    times = []
    for i, event in enumerate(events):
        if event is None:
            firing.gap()
            continue
        scores = np.array([*[1.0] * len(before), *event], np.float32)
        times += [round(a.time_s, 6) for a in firing.push(i / RATE_HZ, {None: scores})]
    return times


def test_rules_wait_for_somebody_who_stays():
    assert lasting("fall>=0.5", PASSING, 0.0) == [2.0]
    assert lasting("fall>=0.5", PASSING) == lasting("fall>=0.5 for 0.5", PASSING) == []
    assert lasting("fall>=0.5", STAYING) == lasting("fall>=0.5", STAYING, 0.0) == [6.0]
    # The average has reached 0.8 after 2 s ln 5 and is told with the next step.
    assert lasting("walk>=0.5", STAYING) == [pytest.approx(2.0 + PRESENCE_S * math.log(5), abs=0.1)]
    assert lasting("*", STAYING)[0] == lasting("walk>=0.5", STAYING)[0]


def test_rules_about_the_background_and_other_heads_do_not_wait():
    assert lasting("nothing>=0.5 for 1s", PASSING) == [1.0]
    assert lasting("door>=0.5", PASSING, before=("door",)) == [0.0]
    assert lasting("fall>=0.5", PASSING, before=("door",)) == []


def test_somebody_has_to_stay_again_after_a_gap():
    someone, steps = (0, 0, 1), round(RATE_HZ)
    assert lasting("fall>=0.5", [*STAYING[:60], None, (1, 0, 0), *[someone] * steps]) == []
    assert lasting("fall>=0.5", [*STAYING[:60], (1, 0, 0), *[someone] * steps]) == [6.1]


@given(st.lists(st.sampled_from([(1, 0, 0), (0.5, 0.5, 0), (0, 0, 1), (0, 1, 0)]), max_size=80))
def test_rules_that_wait_fire_only_where_others_do(events):
    waiting = lasting("fall>=0.5 every 0", events)
    timeline = Timeline(threshold=0.5, presence_s=PRESENCE_S, min_length_s=0.0)
    presence = LastingPresence(timeline, ("nothing", "walk", "fall"), "nothing")
    there = [presence.push(i / RATE_HZ, np.array(e, float)) for i, e in enumerate(events)]
    at = {
        round(i / RATE_HZ, 6) for i, e in enumerate(events) if e[2] >= 0.5 and any(there[: i + 1])
    }
    assert set(waiting) <= at
    if not any(there):
        assert waiting == []


def test_an_alert_says_what_and_since_when():
    (alert,) = run("fall>=0.8 for 0.2", fall("08999"))
    assert alert == Alert(
        0.3, "fall>=0.8 for 0.2", "fall", pytest.approx(0.91), pytest.approx(0.1), None
    )


@pytest.mark.parametrize(
    ("rule", "scores", "count"),
    [
        ("fall>=0.5", (0.5, 0.5, 0.5), 1),
        ("fall>0.5", (0.5, 0.5, 0.5), 0),
        ("fall>=0.75 until 0.5 every 0", (0.75, 0.5, 0.75), 1),  # armed below the bound alone
        ("fall>=0.75 until 0.5 every 0", (0.75, 0.4375, 0.75), 2),
        ("fall>=0.5 for 0.1", (0.9, math.nan, 0.9), 0),
    ],
)
def test_bounds(rule, scores, count):
    assert len(run(rule, [(0, 0, score) for score in scores])) == count


def test_of_several_labels_the_best_fires():
    alerts = run("*>=0.3 every 0.5", [(0.9, 0.4, 0.6)] * 10)
    assert [(a.label, round(a.time_s, 6)) for a in alerts] == [("fall", 0.0), ("walk", 0.5)]


# --- the reference: every step looks at the whole past -----------------------------------------


def first_above(rule, target, events, i):
    """Return the first of the steps up to ``i`` that are all above the threshold, None without."""
    first = None
    for j in range(i, -1, -1):
        score = None if events[j] is None else events[j][target.index]
        if score is None or score < target.above or (score == target.above and rule.strict):
            break
        first = j
    return first


def is_armed(target, events, i, fired):
    """Return whether the score was below ``until``, or missing, since the rule fired."""
    mine = [k for k, index in fired if index == target.index]
    between = events[mine[-1] + 1 : i + 1] if mine else ()
    return not mine or any(e is None or e[target.index] < target.until for e in between)


def reference(text, events):
    rule = parse_rule(text)
    fired = []  # place in events, class
    alerts = []
    for i, event in enumerate(events):
        due = []
        for target in targets(rule, CLASSES) if event is not None else ():
            first = first_above(rule, target, events, i)
            if first is None or (i - first) / RATE_HZ < rule.for_s - SLACK_S:
                continue
            if is_armed(target, events, i, fired):
                due.append((event[target.index], target, first))
        for score, target, first in sorted(due, key=lambda one: -one[0]):
            if fired and (i - fired[-1][0]) / RATE_HZ < rule.every_s - SLACK_S:
                continue
            fired.append((i, target.index))
            alerts.append(Alert(i / RATE_HZ, text, target.label, score, first / RATE_HZ))
    return alerts


levels = st.sampled_from([0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0])
steps = st.tuples(levels, levels, levels)
rules = st.builds(
    "{} {} {} for {} until {} every {}".format,
    st.sampled_from(["fall", "walk", "*", "nothing"]),
    st.sampled_from([">", ">="]),
    st.sampled_from([0.5, 0.625, 0.75]),
    st.sampled_from([0, 0.1, 0.2, 0.3, 0.7]),
    st.sampled_from([0.0, 0.25, 0.375, 0.5]),
    st.sampled_from([0, 0.1, 0.4, 1, 30]),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(rules, st.lists(st.one_of(steps, steps, steps, steps, steps, st.none()), max_size=60))
def test_any_series_as_the_rule_reads(rule, events):
    assert run(rule, events) == reference(rule, events)


# --- feeds that are away -------------------------------------------------------------------------


def watch(rule, polls):
    firing = RuleEvaluator(parse_rule(rule), CLASSES)
    return [a for now_s, state, age_s in polls for a in firing.state(now_s, state, age_s)]


def test_a_gap_fires_once_and_again_after_data():
    polls = [(float(t), "live" if t < 5 else "stalled", max(0.0, t - 5.0)) for t in range(20)]
    assert watch("gap>=10s every 0", polls) == [Alert(15.0, "gap>=10s every 0", "gap", 1.0, 5.0)]
    polls += [(20.0, "live", 0.1)] + [(float(t), "waiting", t - 20.0) for t in range(21, 40)]
    assert [a.time_s for a in watch("gap>=10s every 0", polls)] == [15.0, 30.0]
    assert [a.time_s for a in watch("gap>=10s", polls)] == [15.0]
    polls += [(float(t), "waiting", t - 20.0) for t in range(40, 60)]
    assert [a.time_s for a in watch("gap>=10s", polls)] == [15.0, 45.0]
    never = [(float(t), "connecting", float(t)) for t in range(20)]
    assert [(a.time_s, a.since_s) for a in watch("gap>=10s", never)] == [(10.0, 0.0)]


def test_lost_means_until_data_come():
    states = ["connecting", "live", "waiting", "connecting", "waiting", "stalled", "live", "lost"]
    polls = [(float(t), state, 0.5) for t, state in enumerate(states)]
    assert [a.time_s for a in watch("lost every 0", polls)] == [2.0, 7.0]
    assert [(a.time_s, a.since_s) for a in watch("lost for 2s every 0", polls)] == [(4.0, 2.0)]


def test_what_a_rule_is_not_about_leaves_it_alone():
    ended = [(float(t), "ended", float(t)) for t in range(50)]  # it is not away
    assert watch("gap>=10s", ended) == []
    assert watch("lost", ended) == []
    assert watch("fall>=0.1", [(50.0, "lost", 50.0)]) == []
    assert run("gap>=0.1", fall("9|9")) == []


states = st.sampled_from(["connecting", "live", "stalled", "waiting", "lost", "ended"])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["gap", "lost"]),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([0.0, 2.0, 30.0]),
    st.lists(st.tuples(states, st.booleans()), max_size=40),
)
def test_any_feed_that_goes_and_comes(kind, for_s, every_s, story):
    """``story``: at each second the state, and whether data came in it."""
    text = f"{kind} {'>=' if kind == 'gap' else 'for'} {for_s} every {every_s}"
    polls, newest_s = [], 0.0
    for t, (state, data) in enumerate(story):
        newest_s = float(t) if data else newest_s
        polls.append((float(t), state, t - newest_s))
    expected = []
    for i, (now_s, state, age_s) in enumerate(polls):
        since = int(expected[-1].time_s) + 1 if expected else 0
        later = polls[since : i + 1]
        if kind == "gap":
            since_s = now_s - age_s
            back = any(s != "ended" and a < for_s - SLACK_S for _, s, a in later)
        else:
            live = [t for t, s, _ in polls[: i + 1] if s == "live"]
            gone = [t for t, s, _ in polls[: i + 1] if s in ("waiting", "lost")]
            gone = [t for t in gone if not live or t > live[-1]]
            since_s = gone[0] if gone else math.inf
            back = any(s == "live" for _, s, _ in later)
        if state == "ended" or now_s - since_s < for_s - SLACK_S:
            continue
        if (expected and now_s - expected[-1].time_s < every_s) or (expected and not back):
            continue
        expected.append(Alert(now_s, text, kind, 1.0, since_s))
    assert watch(text, polls) == expected


@pytest.mark.parametrize(
    ("text", "scores", "held"),
    [
        ("fall>=0.8 every 3s", "9090909090", [None, 1, 1]),  # fires at 0, 4 and 8 s
        ("fall>=0.8 every 3s", "9999999999", [None]),  # once as long as it lasts
        ("fall>=0.8 every 0", "9090", [None, None]),
        ("fall>=0.8 every 3s", "9099909999", [None, None, None]),  # late, not lost
    ],
)
def test_what_the_pause_holds_back_is_counted_once(text, scores, held):
    evaluator = RuleEvaluator(parse_rule(text), CLASSES)
    alerts = []
    for time_s, score in enumerate(scores):
        alerts += evaluator.push(float(time_s), {None: np.array([0, 0, int(score) / 10])})
    assert [alert.held for alert in alerts] == held
    assert evaluator.held >= sum(filter(None, held))
