"""Captions of persons in annotated video: what each does, as in the timeline."""

from __future__ import annotations

from costream.core.records import Gap, Head, Prediction
from costream.draw.person_actions import PersonActions

LABELS = ("background", "walk", "<b>fall</b>")
HEADS = {
    "moves": Head("moves", "ab" * 32, LABELS, "background", 0.0, 0.6, low=0.3),
    "falls": Head("falls", "cd" * 32, LABELS[::2], "background", 0.0, 0.5),
}


def step(
    i: int, label: str, score: float, person: int | None = 1, model: str = "moves"
) -> Prediction:
    top = tuple(sorted(((label, score), ("background", 1 - score)), key=lambda pair: -pair[1]))
    return Prediction(i, i / 5, i, i, top, model=model, person=person)


def test_an_action_opens_and_closes_at_its_thresholds() -> None:
    actions, shown = PersonActions(HEADS), []
    for i, score in enumerate((0.5, 0.7, 0.4, 0.2, 0.5)):
        actions.write(step(i, "walk", score))
        shown.append(actions.caption(1))
    assert shown == ["", "walk 0.70", "walk 0.40", "", ""]
    assert actions.name(1) == "person 1"  # who is there, and does nothing that is known


def test_persons_and_heads_do_not_mix() -> None:
    actions = PersonActions(HEADS)
    actions.write(step(0, "walk", 0.9, person=1))
    actions.write(step(0, "walk", 0.8, person=3))
    actions.write(step(0, "<b>fall</b>", 0.7, person=3, model="falls"))
    actions.write(step(0, "walk", 0.9, person=None))
    assert actions.caption(1) == "walk 0.90"
    assert actions.name(3) == "person 3: walk 0.80, <b>fall</b> 0.70"
    assert (actions.name(2), actions.caption(2)) == ("", "")


def test_a_gap_ends_what_persons_do() -> None:
    actions = PersonActions(HEADS)
    actions.write(step(0, "walk", 0.9))
    actions.write(Gap(0.2, 5.0, "no data"))
    assert actions.name(1) == ""
