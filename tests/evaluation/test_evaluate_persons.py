"""Recordings of several persons: each is scored by themselves where the labels number them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from costream.core.records import Header, Prediction, Segment, Summary, dumps, to_json
from costream.evaluation import recordings as evaluated
from costream.evaluation.evaluate_settings import EvaluateSettings
from costream.evaluation.recordings import watch_scores
from costream.evaluation.stored_results import result_scores
from costream.labels.reading import read_recordings

LABELS = ("none", "wave", "kick")
DONE = {1: (1, 0), 2: (0, 2), 3: (0, 0)}  # person: label of the first and the second ten seconds
TRUTH = "start_s,end_s,label,person\n0,10,wave,1\n10,20,kick,2\n"
SWAPPED = "start_s,end_s,label,person\n0,10,wave,2\n10,20,kick,1\n"


def header(**changes: Any) -> Header:
    about = {"labels": LABELS, "background": "none", "rate_hz": 1.0, "delay_s": 0.0}
    about |= {"source": "two.csv", "kind": "skeleton", "duration_s": 20.0, "options": {}}
    return Header(version="0", model="m", weights_sha256="", **{**about, "persons": 8, **changes})


def records() -> list[Any]:
    out: list[Any] = []
    for i in range(20):
        for person, labels in DONE.items():
            scores = tuple(0.9 if k == labels[i // 10] else 0.05 for k in range(3))
            top = ((LABELS[labels[i // 10]], 0.9),)
            out.append(Prediction(i, float(i), i, i, top, scores, person=person))
    out.append(Segment(0.0, 10.0, "wave", 0.9, person=1))
    out.append(Segment(10.0, 20.0, "kick", 0.9, person=2))
    return out


def summary() -> Summary:
    return Summary(20, 2, 0, 0, 20.0, 1.0, 20.0, 0, 0, True, 0)


def results(folder: Path) -> Path:
    lines = [to_json(record) for record in (header(), *records(), summary())]
    folder.mkdir()
    (folder / "two.csv.jsonl").write_text("\n".join(map(dumps, lines)) + "\n", "utf-8")
    return folder


def truth(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "two.csv.timeline.csv").write_text(text, "utf-8")
    return folder


def scored(results: Path, labels: Path) -> dict[str, Any]:
    return result_scores(EvaluateSettings(None, None, None, labels, results))


def test_each_person_is_scored_against_their_own_labels(tmp_path: Path) -> None:
    own = scored(results(tmp_path / "out"), truth(tmp_path / "truth", TRUTH))
    assert own["recordings"] == 2  # nobody is said to be number 3
    assert own["frames"]["accuracy"] == 1.0
    other = scored(tmp_path / "out", truth(tmp_path / "swapped", SWAPPED))
    assert other["frames"]["accuracy"] == 0.0
    together = scored(
        tmp_path / "out", truth(tmp_path / "all", TRUTH.replace(",1\n", "\n").replace(",2\n", "\n"))
    )
    assert together["recordings"] == 1


def test_timelines_of_persons(tmp_path: Path) -> None:
    """Without scores: segments alone, from the tables that runs write."""
    lines = "person,start_s,end_s,label,score\n1,0,10,wave,0.9\n2,10,20,kick,0.9\n"
    found = truth(tmp_path / "out", lines)
    own = scored(found, truth(tmp_path / "truth", TRUTH))
    other = scored(found, truth(tmp_path / "swapped", SWAPPED))
    assert own["frames"] is other["frames"] is None
    assert own["segments"] != other["segments"]
    assert own["recordings"] == 2


@pytest.mark.parametrize("follows", [True, False])
def test_a_model_follows_persons_where_labels_number_them(
    follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that tells nobody apart is scored as without numbers."""
    told: list[bool] = []

    def run_into(collector: Any, *_: Any, follow_persons: bool) -> None:
        told.append(follow_persons)
        collector.open(header(persons=8 if follow_persons else None))
        for record in records():
            collector.write(record)
        collector.macs, collector.ms = [1], [1.0]
        collector.close(summary())

    info = SimpleNamespace(follows=follows, weights_sha256="")
    card = SimpleNamespace(labels=LABELS, background="none", name="m")
    for name, value in (
        ("card_of", lambda settings: card),
        ("load", lambda settings: SimpleNamespace(info=info)),
        ("source_options", lambda settings, model: None),
        ("open_source", lambda uri, options: None),
        ("run_into", run_into),
    ):
        monkeypatch.setattr(evaluated, name, value)
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "two.csv").write_text("x\n", "utf-8")
    labels = truth(tmp_path / "truth", TRUTH)
    settings = EvaluateSettings("m", None, tmp_path / "media", labels)
    scores = watch_scores(settings, SimpleNamespace(requested=False))  # type: ignore[arg-type]
    assert told == [follows]
    assert scores["recordings"] == 1 + follows


def test_numbers_are_read_unless_they_are_groups(tmp_path: Path) -> None:
    folder = truth(tmp_path / "truth", TRUTH.replace("wave,1", "wave,anna"))
    (one,) = read_recordings(None, folder)
    assert [label.person for label in one.labels] == [None, 2]
