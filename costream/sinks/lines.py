"""Every step as a line: its time, best label and score, and the text it is about."""

from __future__ import annotations

from costream.formatting import clean
from costream.records import Objects, Prediction, Record
from costream.sinks.base import TextSink, output_file


@output_file("lines.txt", format="lines", about="every step as a line, of text with it", joins=True)
class LabelledLines(TextSink):
    """Tab-separated time in seconds, best label, its score, and the line of text, if there is one.

    With several heads a line for each; of objects the surest one, if there are any. Control
    characters of the text are left out.
    """

    def write(self, record: Record) -> None:
        """Write a prediction, or the objects of a step; other records are ignored."""
        text = None
        if isinstance(record, Prediction):
            (label, score), text = record.top[0], record.text
        elif isinstance(record, Objects) and record.boxes:
            best = max(record.boxes, key=lambda box: box.score)
            label, score = best.label, best.score
        else:
            return
        cells = [f"{record.time_s:.6g}", clean(label), f"{score:.2f}"]
        cells += [] if text is None else [clean(text)]
        self._out.write("\t".join(cells) + "\n", flush=True)
