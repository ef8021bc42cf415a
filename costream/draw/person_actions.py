"""What each person does now, as captions in annotated video."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from costream.core.formatting import clean
from costream.core.hysteresis import Hysteresis, Smoother
from costream.core.records import Gap, Head, Prediction, Record


class PersonActions:
    """The label of each person in each head, which opens and closes as in the timeline.

    A label that lasts too short for the timeline is shown, too, as its length is not known yet.

    ``heads``: by the ``model`` of their predictions.
    """

    def __init__(self, heads: Mapping[str | None, Head]) -> None:
        self._heads = heads
        self._open: dict[tuple[int, str | None], _Label] = {}

    def write(self, record: Record) -> None:
        """Take the newest scores of a person; a gap ends everything."""
        if isinstance(record, Gap):
            self._open.clear()
        elif isinstance(record, Prediction) and record.person is not None:
            head = self._heads.get(record.model)
            if head is not None:
                key = record.person, record.model
                if key not in self._open:
                    self._open[key] = _Label(head)
                self._open[key].take(record)

    def caption(self, person: int) -> str:
        """Return what a person does, as ``walk 0.87``; empty if no action is known."""
        labels = (label for (number, _), label in self._open.items() if number == person)
        return ", ".join(label.text for label in labels if label.text)

    def name(self, person: int) -> str:
        """Return ``person 2: walk 0.87``, or ``person 2``; empty for who has no predictions."""
        if not any(number == person for number, _ in self._open):
            return ""
        return f"person {person}: {self.caption(person)}".removesuffix(": ")


class _Label:
    """The open label of one person in one head."""

    def __init__(self, head: Head) -> None:
        self.text = ""
        self._labels = head.labels
        self._smoother = Smoother(head.smooth_s)
        self._rule = Hysteresis(head.labels, head, head.background)
        self._open: int | None = None

    def take(self, record: Prediction) -> None:
        best = dict(record.top)
        scores = np.array([best.get(label, 0.0) for label in self._labels])
        scores = self._smoother.push(record.time_s, scores)
        self._open = self._rule.step(scores, self._open)
        self.text = ""
        if self._open is not None:
            self.text = f"{clean(self._labels[self._open])} {scores[self._open]:.2f}"
