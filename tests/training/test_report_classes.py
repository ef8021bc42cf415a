"""HTML training report for actions and sounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.checkpoints.card import Card, Timeline
from costream.evaluation.clips import sequence_scores
from costream.training.calibration import StreamPredictions, calibrate
from costream.training.report.classes import SequenceReport, sequence_report
from costream.training.report.page import MOST_CONFUSED
from kit.browser import browse, console, fit, needs_browser
from kit.pages import Page

LABELS = ("background", "bend & stretch", "<wave>", "step", "a very long name of a class " * 3)


def learnt(labels: tuple[str, ...] = LABELS, checks: int = 12, seed: int = 0) -> SequenceReport:
    """A training with made-up results on ``checks`` examples of each event."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(1, len(labels)), checks)
    logits = 2.5 * np.eye(len(labels))[truth][:, None] + rng.normal(0, 1.5, (len(truth), 12, 1))
    logits = logits + rng.normal(0, 1.2, (len(truth), 12, len(labels)))
    logits = logits + rng.normal(0, 1.1, (len(truth), 1, len(labels)))
    told = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    card = Card("moves", "online action detection", "costgcn", {}, labels, 15.0)
    card = replace(card, background=labels[0], split="By file.", licence="Own <data>.")
    trained = Counter({label: 4 + k for k, label in enumerate(labels[1:])})
    history = [
        {
            "step": 20.0 * k,
            "loss": 2.0 / k + 0.1,
            "validation_loss": 1.5 / k + 0.4,
            "validation_accuracy": 1 - 0.6 / k,
        }
        for k in range(1, 9)
    ]
    if not checks:
        del history[1:]
        return SequenceReport(card, "moves.safetensors", trained, Counter(), history)
    checked = Counter(dict.fromkeys(labels[1:], checks))
    streams = [
        StreamPredictions(np.concatenate(told[k::8]), np.repeat(truth[k::8], 12))
        for k in range(min(8, checks))
    ]
    chosen = calibrate([streams], labels, 15.0, Timeline(), examples=checked)
    groups = [str(k) for k in range(len(truth))]
    own = {"sequences": len(truth), **sequence_scores(list(told), truth, groups, labels)}
    scores: dict[str, Any] = {"moves": own, "nearest centroid": own, "majority": {"top1": 0.25}}
    card = replace(card, metrics={"validation": scores}, timeline=chosen.timeline)
    return SequenceReport(card, "moves.safetensors", trained, checked, history, streams, chosen)


def written(folder: Path, about: SequenceReport) -> Path:
    path = folder / "moves.html"
    path.write_text(sequence_report(about), "utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report"), learnt())


def test_it_parses_and_has_every_class_and_figure(page: Path) -> None:
    found = Page(page)
    for label in LABELS:
        assert sum(" ".join(label.split()) == " ".join(word.split()) for word in found.words) >= 2
    said = found.text
    for words in (
        *("Top-1", "F1 of segments", "Learning", "validation loss", "validation accuracy"),
        *("Average precision", "Confusion", "nearest centroid", "majority", "0.250"),
        *("temperature", "time constant of smoothing", "expected calibration error"),
        *("Own <data>.", "By file.", "costream detect FILE -m moves.safetensors"),
        "Made by costream train",
    ):
        assert words in said
    assert found.count("path", "line") == 3
    assert found.count("figure") == 2
    assert found.count("tr") > 3 * len(LABELS)


def test_it_needs_nothing_else(page: Path) -> None:
    found = Page(page)
    assert found.count("script") == 0
    assert all(link.startswith(("#", "data:")) for link in found.values("href"))
    assert "default-src 'none'" in page.read_text("utf-8")


def test_without_validation_it_says_so(tmp_path: Path) -> None:
    found = Page(written(tmp_path, learnt(checks=0)))
    assert "There were no validation examples" in found.text
    assert "Confusion" not in found.text
    assert all(" ".join(label.split()) in found.text for label in LABELS)


def test_many_classes_have_a_list_of_errors(tmp_path: Path) -> None:
    labels = ("background", *(f"class {k}" for k in range(MOST_CONFUSED + 5)))
    found = Page(written(tmp_path, learnt(labels, checks=3)))
    assert "Predicted as" in found.text
    assert found.count("span", "shade") == 0
    assert all(found.text.count(label) >= 1 for label in labels)


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_a_word(page: Path, tmp_path: Path, width: int) -> None:
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    assert done.stdout.count("<rect") == page.read_text("utf-8").count("<rect") > 20
    assert fit(page, width, tmp_path) == (width, width, 0)
