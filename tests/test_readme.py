"""What the README and the pages of the manual claim is so; their examples: tests/manual."""

from __future__ import annotations

import re
from typing import Any

import pytest

from costream.core.clock import parse_time
from costream.models.catalogue import load_model
from costream.weights_io.file import read_card
from costream.weights_io.licences import licence_class
from kit.paths import RESEARCH, SHIPPED
from kit.program import ROOT
from kit.runs import run

README = (ROOT / "README.md").read_text("utf-8")
WEIGHTS = (ROOT / "costream" / "manual" / "weights.md").read_text("utf-8")
DETECT = (ROOT / "costream" / "manual" / "detect.md").read_text("utf-8")
ROOM = ROOT / "samples" / "room.mp4"
VENV = "python3 -m venv .venv && .venv/bin/pip install"


def test_the_readme_is_short_and_has_the_two_commands_of_the_set_up():
    assert len(README.splitlines()) <= 200
    assert f"{VENV} . && .venv/bin/costream detect samples/room.mp4\n" in README
    assert f"{VENV} '.[test]' ./weights/research && .venv/bin/python -m pytest\n" in README


@pytest.mark.parametrize(
    ("text", "model"),
    [pytest.param(README, "auto", marks=pytest.mark.slow), (DETECT, "cooadtr")],
    ids=["README", "detect.md"],
)
def test_the_timeline_that_is_shown_is_that_of_the_room(text: str, model: str) -> None:
    name = r"(?:nanodet  )?(?:● )?([a-z]+(?: [a-z]+)*)"
    line = rf"^(\S+)  +(\S+)  +\S+ s  {name} +(?:\d +)?(\d\.\d\d)$"
    told = re.findall(line, text, re.MULTILINE)
    table = run("detect", "-m", model, ROOM, "-f", "table").stdout
    seen = sorted(re.findall(line, table, re.MULTILINE), key=lambda row: parse_time(row[0]))
    assert len(told) >= 3
    for (start, end, label, score), own in zip(told, seen, strict=False):
        assert own[2] == label
        assert float(own[3]) == pytest.approx(float(score), abs=0.03)
        # A step of other processors may be on the other side of a threshold.
        assert parse_time(own[0]) == pytest.approx(parse_time(start), abs=0.13)
        assert parse_time(own[1]) == pytest.approx(parse_time(end), abs=0.13)


def test_files_and_folders_that_are_named_exist():
    for name in re.findall(r"samples/[\w.]+", README):
        assert (ROOT / name).exists()
    pictures = [p for p in (ROOT / "samples").iterdir() if p.suffix in (".svg", ".png")]
    assert sum(p.stat().st_size for p in pictures) < 400_000


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_every_weight_file_has_a_row_with_its_licence(path):
    (row,) = re.findall(rf"^\|.*`{path.stem}`.*\|$", README, re.MULTILINE)
    licence, card = row.split("|")[-2].lower(), read_card(path)
    assert licence.strip(" *").startswith(licence_class(card))
    known = card.licence.lower()
    words = ("no licence", "research", "not commercial", "cc by-nc", "apache-2.0", "mit:")
    assert all(word in known for word in words if word in licence)
    assert any(word in licence for word in words)


def shown(name: str, held_out: str, score: str, rows: dict[str, Any]) -> str:
    """Return a row of the table in weights.md: the shipped weights and simpler methods."""
    single = [m for m in rows if m.startswith(("per-frame", "linear"))]
    assert len(single) == 1
    models = (name, *single, "tree ensemble", "majority")
    numbers = " | ".join(f"{rows[m][score]:.3f}" for m in models)
    return f"| `{name}` | {held_out} | {score.replace('top1', 'top-1')} | {numbers} |"


@pytest.mark.parametrize("name", ["cooadtr", "cooadtr-b2", "oadtr"])
def test_scores_of_video_are_those_of_the_card(name: str) -> None:
    rows = read_card(RESEARCH / f"{name}.safetensors").metrics["test"]
    held_out = f"fir_action, {rows[name]['videos']} videos, six actions"
    assert shown(name, held_out, "mAP", rows) in WEIGHTS


@pytest.mark.parametrize(("name", "parts"), [("cosounds", 4), ("cotrans", 2)])
def test_scores_of_clips_are_those_of_the_card(name: str, parts: int) -> None:
    metrics = read_card(RESEARCH / f"{name}.safetensors").metrics
    assert len(metrics) == parts
    for part, rows in metrics.items():
        assert shown(name, f"{part} ({rows[name]['sequences']} clips)", "top1", rows) in WEIGHTS


def test_scores_of_motions_are_those_of_the_cards() -> None:
    """For each set: both models, alone and with the background competing, and simpler methods."""
    names = ("costgcn", "costgcn-2d")
    space, flat = (read_card(RESEARCH / f"{n}.safetensors").metrics for n in names)
    films = next(part for part in flat if part.startswith("Exercises in films"))
    shares = flat[films]["costgcn-2d"]["timeline"]
    cells = " | ".join(f"{shares[name]:.2f}" for name in ("right", "wrong", "nothing"))
    assert f"| `costgcn-2d` | {cells} |" in WEIGHTS
    flat = {part: rows for part, rows in flat.items() if part != films}
    assert (len(space), len(flat)) == (9, 10)
    for part in {**flat, **space}:  # GTU3D's are two: one has learnt its "crouch", one has not
        rows = {**flat.get(part, {}), **space.get(part, {})}
        cells = [
            *((name, key) for name in names for key in ("top1", "top1_background")),
            *((method, "top1") for method in ("tree ensemble", "majority")),
        ]
        numbers = [f"{rows[name][key]:.3f}" if name in rows else "-" for name, key in cells]
        count = next(rows[name]["sequences"] for name in names if name in rows)
        assert f"| {part} ({count}) | {' | '.join(numbers)} |" in WEIGHTS


def test_the_shipped_model_takes_what_is_reported() -> None:
    path = RESEARCH / "cooadtr.safetensors"
    network, costs = load_model(path, device="cpu").network, read_card(path).costs
    own, dense = network.count_macs() / 1e6, network.dense_macs / 1e6
    front, less = costs["macs"] / 1e6 - own, costs["dense_macs"] / costs["macs"]
    said = " ".join(README.split())
    assert f"takes {own:.2f} million multiply-accumulates a step instead of {dense:.1f}," in said
    assert f"takes {front:.1f}: {less:.1f} times less in all" in said
    said = " ".join((ROOT / "costream" / "manual" / "benchmarks.md").read_text("utf-8").split())
    assert (
        f"frontend takes {front:.1f}; the temporal network itself takes {own:.2f} instead" in said
    )


def test_the_shipped_model_is_better_than_its_baselines():
    metrics = read_card(RESEARCH / "cooadtr.safetensors").metrics["test"]
    for score in ("mAP", "mAP_1s", "accuracy", "accuracy_1s", "balanced_accuracy"):
        for baseline in ("per-frame classifier", "tree ensemble", "majority"):
            assert metrics["cooadtr"][score] > metrics[baseline][score]
