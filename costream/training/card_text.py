"""Model cards as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costream.evaluation.clip_tables import interval_units, timeline_table
from costream.weights_io.card import Card
from costream.weights_io.licences import licence_class

Table = Callable[[dict[str, dict[str, Any]], Sequence[str]], list[str]]  # models, labels: lines
_NAMES = {
    "top1": "top-1 among the set's labels",
    "top5": "top-5",
    "top1_vote": "top-1 of votes",
    "top1_last": "top-1 at the end",
    "top1_all": "top-1 among all labels but the background",
    "top1_background": "top-1, background competing",
    "sequence_mAP": "mAP",
    "mAP": "frame mAP",
}


def card_text(card: Card, table: Table) -> str:
    """Return a model card as Markdown. ``table`` formats each part of its metrics."""
    arguments = ", ".join(
        f"{k} {v}" for k, v in {**card.arguments, **card.frontend_arguments}.items()
    )
    labels = f"; labels: {', '.join(card.labels)}" if card.labels else ""
    frontend = f" on frontend {card.frontend}" if card.frontend else ""
    rate = f"{card.rate_hz:g} steps a second; paper" if card.rate_hz else "Paper"
    lines = [
        f"# {card.name}",
        "",
        card.description,
        "",
        f"- Task: {card.task}{labels}",
        f"- Architecture: {card.architecture}{frontend} ({arguments})",
        f"- {rate}: {card.paper}",
        *_costs(card),
        *(f"- {line}" for line in compression_lines(card)),
        f"- Trained on: {card.trained_on}",
        f"- Split: {card.split}",
        f"- Limits: {card.limits}",
        f"- Licence ({licence_class(card)}): {card.licence}",
        *_sample(card),
    ]
    for part, models in card.metrics.items():
        lines += ["", f"## {part}", "", *table(models, card.labels)]
    return "\n".join(lines) + "\n"


def _costs(card: Card) -> list[str]:
    costs = card.costs
    if not costs:
        return []
    macs, dense = costs["macs"] / 1e6, costs["dense_macs"] / 1e6
    computed = f"{macs:.1f} MMAC"
    if macs < 0.95 * dense:
        computed += f" of the {dense:.1f} that recomputing everything takes"
    return [f"- A step: {computed}; about {costs['ms']:.2g} ms ({costs['machine']})"]


def compression_lines(card: Card) -> list[str]:
    """Return a line about adapters and pruning; nothing without them."""
    facts = card.compression
    if "learnt" not in facts:
        return []
    how = "fine-pruned" if facts["adapter"] == "none" else f"{facts['adapter']}"
    if "rank" in facts:
        how += f" of rank {facts['rank']}"
    if "density" in facts:
        how += f", density {facts['density']:.2f}"
    if "density_wanted" in facts:
        how += f" ({facts['density_wanted']:g} is out of reach)"
    text = f"{how}: {facts['learnt']:,} of {facts['learnt_whole']:,} numbers learnt;"
    text += f" a step of the network {facts['macs']:,} of {facts['macs_before']:,} MAC"
    lost = facts.get("validation_loss")
    scores = card.metrics.get("validation", {}).get(card.name, {})
    measure = next((name for name in ("AP50", "mAP") if name in scores), "top-1")
    text += "" if lost is None else f"; {lost:+.3f} of validation {measure} lost by pruning"
    return [f"adapted: {text}"]


def _sample(card: Card) -> list[str]:
    sample = card.sample
    if not sample:
        return []
    part = "" if sample["end_s"] is None else f", first {sample['end_s']:g} s"
    scores = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in sample["metrics"].items())
    return [f"- On samples/{sample['file']}{part}, step by step: {scores} (models verify)"]


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
        lines.append(f"| {model} | {' | '.join(cell(scores.get(n)) for n in names)} |")
    low, high = first["top1_95"]
    lines += ["", f"Top-1: 95 % interval over {interval_units(first)} {low:.3f} to {high:.3f}."]
    timelines = [(model, m["timeline"]) for model, m in models.items() if "timeline" in m]
    if timelines:
        shown = timeline_table("the timeline of a sequence shows", timelines)
        lines += ["", f"| {' | '.join(shown.columns)} |", "|---" * len(shown.columns) + "|"]
        rows = ([str(name), *map(cell, cells)] for name, *cells in shown.rows)
        lines += [f"| {' | '.join(row)} |" for row in rows]
    if "groups" in first:
        parts = [f"{g} {v['top1']:.3f} ({v['sequences']})" for g, v in first["groups"].items()]
        lines += ["", f"By group: {', '.join(parts)}."]
    lines += ["", "| class | sequences | recall | precision |", "|---|---|---|---|"]
    for name in labels:
        if name in first["classes"]:
            row = first["classes"][name]
            cells = (cell(row[k]) for k in ("sequences", "recall", "precision"))
            lines.append(f"| {name} | {' | '.join(cells)} |")
    if first["confused"]:
        wrong = [f"{a} taken for {b} ({n})" for a, b, n in first["confused"][:8]]
        lines += ["", f"Most frequent errors: {'; '.join(wrong)}."]
    return lines


def feature_table(models: dict[str, dict[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return one row per model, and the average precision of each class of the first."""
    first = next(iter(models.values()))
    lines = [
        f"{first['frames']:,} frames of {first['recordings']} recordings.",
        "",
        "| model | mAP | calibrated mAP | accuracy |",
        "|---|---|---|---|",
    ]
    for model, scores in models.items():
        keys = ("mAP", "calibrated_mAP", "accuracy")
        lines.append(f"| {model} | {' | '.join(cell(scores.get(k)) for k in keys)} |")
    lines += ["", "| class | frames | AP | calibrated AP |", "|---|---|---|---|"]
    for name in labels:
        if row := first["classes"].get(name):
            keys = ("frames", "average_precision", "calibrated_average_precision")
            lines.append(f"| {name} | {' | '.join(cell(row[k]) for k in keys)} |")
    return lines


def cell(value: str | float | None) -> str:
    """Return a table cell: numbers with three decimals, a dash for None."""
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
