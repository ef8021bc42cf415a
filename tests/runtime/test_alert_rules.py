"""Syntax of alert rules: meaning, and the place of a mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.checkpoints.card import Card, Timeline
from costream.errors import UsageError
from costream.runtime.alerts.rules import Rule, RuleLabels, parse_rule, targets

CLASSES = RuleLabels(("nothing", "walk", "fall"), (0.5, 0.5, 0.5), frozenset({0}))


def card(name, labels, background=None):
    return Card(name, "", "", {}, labels, rate_hz=4.0, background=background)


@pytest.mark.parametrize(
    ("text", "told"),
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
        ("lost for 5s", {"kind": "lost", "for_s": 5.0}),
        ("'lost'", {"label": "lost"}),
        ("'gap'>=0.5", {"label": "gap", "above": 0.5}),
        ("lost child>=0.5", {"label": "lost child", "above": 0.5}),
    ],
)
def test_what_rules_mean(text, told):
    assert parse_rule(text) == Rule(text, **{"kind": "label", **told})


@pytest.mark.parametrize(
    ("text", "column", "wanted"),
    [
        ("", 1, "a label"),
        (">=0.8", 1, "a label"),
        ("for 2s", 1, "a label"),
        ("fall>=", 7, "a probability"),
        ("fall>=80", 7, "from 0 to 1, not '80'"),
        ("fall>=nan", 7, "from 0 to 1"),
        ("fall >= 0.8 0.9", 13, "'for' or 'until' or 'every', not '0.9'"),
        ("fall for", 9, "a time"),
        ("fall for 2m", 10, "a time, as in 2s or 1:30, not '2m'"),
        ("fall for 2s for 3s", 13, "'until' or 'every'"),
        ("fall until 2s", 12, "a probability"),
        ("'fall>=0.8", 1, "a closing quote"),
        ("gap", 4, "'>=' and a time"),
        ("gap>=0s", 6, "a time above 0"),
        ("gap>=2s until 0.5", 9, "'every'"),
        ("lost>=2s", 5, "'for' or 'every'"),
    ],
)
def test_where_a_mistake_is(text, column, wanted):
    with pytest.raises(UsageError) as error:
        parse_rule(text)
    assert f"column {column}: expected" in str(error.value)
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
    with pytest.raises(UsageError, match=r"no label 'run'; it has fall, nothing, walk"):
        targets(parse_rule("run>=0.8"), CLASSES)


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
