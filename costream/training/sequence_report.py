"""Sequence metrics as Markdown, for the cards of skeleton and audio models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NAMES = {
    "top1": "top-1",
    "top5": "top-5",
    "top1_vote": "top-1 of votes",
    "top1_last": "top-1 at the end",
    "top1_all": "top-1 among all labels",
    "sequence_mAP": "mAP",
    "mAP": "frame mAP",
}


def sequence_table(models: dict[str, dict[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return one row per model, accuracy by group and by class, and the most frequent errors."""
    first = next(iter(models.values()))
    names = [name for name in _NAMES if name in first]
    lines = [
        f"{first['sequences']} sequences; scores are the mean over the steps of a sequence.",
        "",
        f"| model | {' | '.join(_NAMES[n] for n in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for model, scores in models.items():
        lines.append(f"| {model} | {' | '.join(_cell(scores.get(n)) for n in names)} |")
    low, high = first["top1_95"]
    lines += ["", f"Top-1: 95 % interval over {first['top1_95_over']} {low:.3f} to {high:.3f}."]
    if "groups" in first:
        parts = [f"{g} {v['top1']:.3f} ({v['sequences']})" for g, v in first["groups"].items()]
        lines += ["", f"By group: {', '.join(parts)}."]
    lines += ["", "| class | sequences | recall | precision |", "|---|---|---|---|"]
    for name in labels:
        if name in first["classes"]:
            row = first["classes"][name]
            cells = (_cell(row[k]) for k in ("sequences", "recall", "precision"))
            lines.append(f"| {name} | {' | '.join(cells)} |")
    if first["confused"]:
        wrong = [f"{a} taken for {b} ({n})" for a, b, n in first["confused"][:8]]
        lines += ["", f"Most frequent errors: {'; '.join(wrong)}."]
    return lines


def _cell(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
