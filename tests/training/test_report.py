"""HTML training reports for actions and sounds, and for detectors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.evaluation.clips import sequence_scores
from costream.evaluation.metrics.detection import DetectedBoxes, Truth
from costream.training.objects.detector_card import rounded_scores
from costream.training.report.detector_report import DetectorReport, objects_report
from costream.training.report.report_parts import MOST_CONFUSED
from costream.training.report.sequence_report import SequenceReport, sequence_report
from costream.training.stream_calibration import StreamPredictions, calibrate
from costream.weights_io.card import Card, Timeline
from kit.browser import browse, console, fit, needs_browser
from kit.pages import Page

LABELS = ("background", "bend & stretch", "<wave>", "step", "a very long name of a class " * 3)
OBJECTS = ("<cup>", "spoon & fork", "a very long name of a class " * 3)


def learnt_classes(
    labels: tuple[str, ...] = LABELS, checks: int = 12, seed: int = 0
) -> SequenceReport:
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
        return SequenceReport(
            card, "moves.safetensors", trained, Counter(), history, verdict="not validated"
        )
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


def learnt_objects(pictures: int = 12) -> DetectorReport:
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
    timeline = Timeline(threshold=0.3, thresholds={OBJECTS[0]: 0.45})
    card = Card("things", "object detection", "vitdet", {}, OBJECTS, 10.0, timeline=timeline)
    card = replace(card, split="By file.", licence="Own <data>.")
    history = [{"step": 25.0 * k, "loss": 2 / k, "AP50": 1 - 0.8 / k} for k in range(1, 6)]
    trained = Counter(dict.fromkeys(OBJECTS, 9))
    if not pictures:
        return DetectorReport(
            card, "things.safetensors", trained, Counter(), history, verdict="not validated"
        )
    own = rounded_scores(found, truth, OBJECTS)
    scores = {"things": {**own, "AP50_95": [0.2, 0.9]}, "before": own}
    card = replace(card, metrics={"validation": scores})
    checked = Counter(OBJECTS[k] for one in truth for k in one.labels)
    return DetectorReport(card, "things.safetensors", trained, checked, history, found, truth)


def written(folder: Path, about: SequenceReport | DetectorReport) -> Path:
    """Write the report of a training, which has no scripts and needs nothing else."""
    path = folder / "report.html"
    detects = isinstance(about, DetectorReport)
    path.write_text(objects_report(about) if detects else sequence_report(about), "utf-8")
    found = Page(path)
    assert found.count("script") == 0
    assert all(link.startswith(("#", "data:")) for link in found.values("href"))
    assert "default-src 'none'" in found.source
    return path


@pytest.fixture(scope="module", params=["classes", "objects"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    about = learnt_classes() if request.param == "classes" else learnt_objects()
    return written(tmp_path_factory.mktemp(request.param), about)


def test_it_parses_and_has_every_class_and_figure(page: Path) -> None:
    found, objects = Page(page), page.parent.name.startswith("objects")
    words = [" ".join(word.split()) for word in found.words]
    for label in OBJECTS if objects else LABELS:
        assert words.count(" ".join(label.split())) >= 2
    if objects:
        expected = (
            *("AP50", "0.20 to 0.90", "Learning", "Threshold", "0.45", "Recall", "Precision"),
            *("Confusion", "nothing", "Compared with baselines", "before", "Own <data>."),
            *("By file.", "costream evaluate -m things.safetensors --data FOLDER --labels BOXES"),
        )
        assert found.count("span", "shade") == 16  # three classes and nothing
    else:
        expected = (
            *("Top-1", "F1 of segments", "Learning", "validation loss", "validation accuracy"),
            *("Average precision", "Confusion", "nearest centroid", "majority", "0.250"),
            *("of 48", "of 12", "with the initial settings"),
            *("temperature", "time constant of smoothing", "expected calibration error"),
            *("Own <data>.", "By file.", "costream detect FILE -m moves.safetensors"),
            "Made by costream train",
        )
        assert found.count("path", "line") == 3
        assert found.count("figure") == 2
        assert found.count("tr") > 3 * len(LABELS)
    assert [word for word in expected if word not in found.text] == []


@pytest.mark.parametrize(
    ("about", "labels"), [(learnt_classes(checks=0), LABELS), (learnt_objects(0), OBJECTS)]
)
def test_without_validation_it_says_so(
    about: SequenceReport | DetectorReport, labels: tuple[str, ...], tmp_path: Path
) -> None:
    found = Page(written(tmp_path, about))
    assert "Not validated." in found.text
    assert "Confusion" not in found.text
    assert all(" ".join(label.split()) in found.text for label in labels)


def test_many_classes_have_a_list_of_errors(tmp_path: Path) -> None:
    labels = ("background", *(f"class {k}" for k in range(MOST_CONFUSED + 5)))
    found = Page(written(tmp_path, learnt_classes(labels, checks=3)))
    assert "Predicted as" in found.text
    assert found.count("span", "shade") == 0
    assert all(found.text.count(label) >= 1 for label in labels)


@pytest.mark.long
@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_a_word(page: Path, tmp_path: Path, width: int) -> None:
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert console(done) == []
    drawn = page.read_text("utf-8").count("<rect")
    assert done.stdout.count("<rect") == drawn > (20 if "classes" in page.parent.name else 0)
    assert fit(page, width, tmp_path) == (width, width, 0)
