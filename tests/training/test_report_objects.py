"""HTML training report for detectors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costream.checkpoints.card import Card, Timeline
from costream.evaluation.metrics.detection import DetectedBoxes, Truth
from costream.training.objects.card import rounded_scores
from costream.training.report.objects import DetectorReport, objects_report
from kit.browser import browse, console, fit, needs_browser
from kit.pages import Page

LABELS = ("<cup>", "spoon & fork", "a very long name of a class " * 3)


def learnt(pictures: int = 12) -> DetectorReport:
    """A training with made-up results: boxes that are a little off, at times of another class."""
    rng = np.random.default_rng(0)
    found, truth = [], []
    for k in range(pictures):
        corner = rng.uniform(0, 50, (4, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(20, 60, (4, 2))], 1)
        labels = rng.integers(0, 2, 4) if k else np.zeros(0, int)  # none of the last
        truth.append(Truth(boxes[: len(labels)], labels))
        said = np.where(rng.random(4) < 0.8, labels if k else 0, rng.integers(0, 3, 4))
        found.append(
            DetectedBoxes(boxes + rng.normal(0, 3, (4, 4)), -np.sort(-rng.random(4)), said)
        )
    timeline = Timeline(threshold=0.3, thresholds={LABELS[0]: 0.45})
    card = Card("things", "object detection", "vitdet", {}, LABELS, 10.0, timeline=timeline)
    card = replace(card, split="By file.", licence="Own <data>.")
    history = [{"step": 25.0 * k, "loss": 2 / k, "AP50": 1 - 0.8 / k} for k in range(1, 6)]
    trained = Counter(dict.fromkeys(LABELS, 9))
    if not pictures:
        return DetectorReport(card, "things.safetensors", trained, Counter(), history)
    own = rounded_scores(found, truth, LABELS)
    scores = {"things": {**own, "AP50_95": [0.2, 0.9]}, "before": own}
    card = replace(card, metrics={"validation": scores})
    checked = Counter(LABELS[k] for one in truth for k in one.labels)
    return DetectorReport(card, "things.safetensors", trained, checked, history, found, truth)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "things.html"
    path.write_text(objects_report(learnt()), "utf-8")
    return path


def test_it_has_every_class_and_figure(page: Path) -> None:
    found = Page(page)
    for label in LABELS:
        assert sum(" ".join(label.split()) == " ".join(word.split()) for word in found.words) >= 2
    for words in (
        *("AP50", "0.20 to 0.90", "Learning", "Threshold", "0.45", "Recall", "Precision"),
        *("Confusion", "nothing", "Compared with baselines", "before", "Own <data>.", "By file."),
        "costream evaluate -m things.safetensors --data FOLDER --labels BOXES",
    ):
        assert words in found.text
    assert found.count("script") == 0
    assert found.count("span", "shade") == 16  # three classes and nothing


def test_without_validation_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "things.html"
    path.write_text(objects_report(learnt(0)), "utf-8")
    found = Page(path)
    assert "There were no validation examples" in found.text
    assert "Confusion" not in found.text


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_a_word(page: Path, tmp_path: Path, width: int) -> None:
    assert console(browse(page, tmp_path / "profile", "--dump-dom")) == []
    assert fit(page, width, tmp_path) == (width, width, 0)
