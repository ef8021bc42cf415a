"""The heads of a run: the models, persons or labels that have a timeline each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from costream.core.records import Head, Header, Segment, has_overlaps


class Heads:
    """The heads of a run, and display names of labels: with the head's name if two share one.

    Persons with separate predictions are heads, too, if there are several.
    Segments of objects overlap, so there each label with segments is treated as a head.
    """

    def __init__(self, header: Header | None = None) -> None:
        self._header = header
        heads = () if header is None else header.heads or ()
        self._heads: dict[str, Head] = {head.model: head for head in heads}
        counts = Counter(label for head in heads for label in set(head.labels))
        self._shared = {label for label, count in counts.items() if count > 1}
        self._by_label = header is not None and has_overlaps(header)
        self._seen: set[str] = set()  # labels that have segments
        self._persons: set[int] = set()  # with segments
        self._owners = {
            self.shown(label, head.model): (head, label) for head in heads for label in head.labels
        }

    @property
    def names(self) -> tuple[str | None, ...]:
        """One entry per timeline; a single None if there is only one."""
        if self._by_label:
            return tuple(label for label in self.labels(None) if label in self._seen) or (None,)
        if len(self._persons) > 1:
            return tuple(f"person {number}" for number in sorted(self._persons))
        return tuple(self._heads) or (None,)

    def shown(self, label: str, model: str | None) -> str:
        """Return the display name of a label of a head."""
        return f"{label} ({model})" if label in self._shared and model in self._heads else label

    def labels(self, model: str | None) -> tuple[str, ...]:
        """Return the display names of a head's labels, in the order of its scores."""
        head = self._heads.get(model or "")
        if head is not None:
            return tuple(self.shown(label, model) for label in head.labels)
        return () if self._header is None else self._header.labels

    def all_labels(self) -> tuple[str, ...]:
        """Return the display names of the labels of all heads."""
        return tuple(label for name in self._heads or (None,) for label in self.labels(name))

    def owns(self, model: str | None, label: str) -> bool:
        """Return whether a label, given by display name, is on the timeline of a head."""
        if self._by_label:
            return model is None or label == model
        if self._persons and not self._heads:
            return True
        owner = self._owners.get(label)
        return model is None or (owner is not None and owner[0].model == model)

    def backgrounds(self) -> frozenset[str]:
        """Return the display names of the background labels."""
        if self._heads:
            pairs = ((head.background, head.model) for head in self._heads.values())
            return frozenset(self.shown(label, model) for label, model in pairs if label)
        background = None if self._header is None else self._header.background
        return frozenset() if background is None else frozenset([background])

    def threshold(self, label: str) -> float | None:
        """Return the probability that opens a segment of a label; None if that is unknown."""
        value: object = None
        timeline = None if self._header is None else self._header.options.get("timeline")
        if label in self._owners:
            head, name = self._owners[label]
            value = head.threshold_of(name)
        elif isinstance(timeline, dict):
            thresholds = timeline.get("thresholds")
            own_value = thresholds.get(label) if isinstance(thresholds, dict) else None
            value = timeline.get("threshold") if own_value is None else own_value
        return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None

    def own(self, segment: Segment) -> Segment:
        """Return a segment with the display names of its label and its head."""
        if self._by_label:
            self._seen.add(segment.label)
            return replace(segment, model=segment.label)
        if segment.person is not None:
            self._persons.add(segment.person)
            return replace(segment, model=f"person {segment.person}")
        label = self.shown(segment.label, segment.model)
        if segment.model in self._heads:
            self._owners.setdefault(label, (self._heads[segment.model], segment.label))
        return segment if label == segment.label else replace(segment, label=label)
