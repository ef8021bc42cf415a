"""Every step as a line: its time, best label and score, and the text it is about."""

from __future__ import annotations

from costream.formatting import clean
from costream.records import Prediction, Record
from costream.sinks.base import TextSink, output_file


@output_file("lines.txt", format="lines", about="every step as a line, of text with it")
class LabelledLines(TextSink):
    """Tab-separated time in seconds, best label, its score, and the line of text, if there is one.

    With several heads a line for each. Control characters of the text are left out.
    """

    def write(self, record: Record) -> None:
        """Write a prediction; other records are ignored."""
        if not isinstance(record, Prediction):
            return
        label, score = record.top[0]
        cells = [f"{record.time_s:.6g}", clean(label), f"{score:.2f}"]
        cells += [] if record.text is None else [clean(record.text)]
        self._out.write("\t".join(cells) + "\n", flush=True)
