"""Every step as a line: its time, best label and score, and the text it is about."""

from __future__ import annotations

from costream.core.formatting import clean
from costream.core.records import Header, Objects, Prediction, Record
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file


@output_file(
    "lines.txt",
    format="lines",
    about="every step as a line, of text with it",
    joins="named",
)
class LabelledLines(TextSink):
    """Tab-separated time in seconds, best label, its score, and the line of text, if there is one.

    With several heads a line for each, which begins with its model, and so with several persons,
    whose number is before the time; of objects the surest one, if there are any. Control characters
    of the text are left out.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._first: str | None = None  # of several heads, which objects are of; None: a single one

    def open(self, header: Header) -> None:
        """Store the name of the first head."""
        super().open(header)
        self._first = header.heads[0].model if header.heads else None

    def write(self, record: Record) -> None:
        """Write a prediction, or the objects of a step; other records are ignored."""
        text, model, person = None, self._first, None
        if isinstance(record, Prediction):
            (label, score), text = record.top[0], record.text
            model, person = record.model, record.person
        elif isinstance(record, Objects) and record.boxes:
            best = max(record.boxes, key=lambda box: box.score)
            label, score = best.label, best.score
        else:
            return
        cells = [] if model is None else [clean(model)]
        cells += [] if person is None else [str(person)]
        cells += [f"{record.time_s:.6g}", clean(label), f"{score:.2f}"]
        cells += [] if text is None else [clean(text)]
        self._out.write("\t".join(cells) + "\n", flush=True)
