"""JSON: one document per run, written incrementally in constant memory."""

from __future__ import annotations

from costream.core.costs import CostTotals
from costream.core.places import Crossing, ZoneEvent
from costream.core.records import (
    Compute,
    Fault,
    Gap,
    Header,
    Level,
    Objects,
    Prediction,
    Record,
    Segment,
    Summary,
    dumps,
    finds_objects,
    plain,
    to_json,
)
from costream.sinks.atomic import Spool, TextOutput
from costream.sinks.base import TextSink, output_file

# Name of a list that is stored -> type of its records, in the order of the document.
_LISTS: dict[str, type[Record]] = {
    "predictions": Prediction,  # of models that run with a detector
    "segments": Segment,
    "gaps": Gap,
    "errors": Fault,
    "zones": ZoneEvent,
    "crossings": Crossing,
    "levels": Level,
}
_ALWAYS = ("segments", "gaps", "errors")  # the other lists are left out if empty


@output_file("json", about="one document", has_summary=True, order=2)
class JsonDocument(TextSink):
    """JSON: ``schema, header, predictions, segments, gaps, errors, compute, summary``.

    A model that finds objects has ``objects`` instead of predictions. These are written as they
    arrive. ``zones``, ``crossings`` and ``levels`` follow the errors where there are any. The
    shorter lists are stored until the end, in memory while they are small. Each
    member starts on its own line and ``summary`` is the last, so that ``registry.is_complete``
    need not read the document.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._totals = CostTotals()
        self._lists = {kind: _Rows() for kind in _LISTS.values()}
        self._of_steps: type[Record] = Prediction
        self._steps = 0

    def open(self, header: Header) -> None:
        """Write everything up to the first step."""
        super().open(header)
        head = to_json(header)
        schema = dumps(head.pop("schema"))
        del head["type"]
        self._of_steps = Objects if finds_objects(header) else Prediction
        steps = "objects" if finds_objects(header) else "predictions"
        text = f'{{\n"schema": {schema},\n"header": {dumps(head)},\n"{steps}": ['
        self._out.write(text, flush=True)

    def write(self, record: Record) -> None:
        """Write the output of a step, or store a record of a later list. Alerts are ignored."""
        if isinstance(record, Compute):
            self._totals.add(record)
            return
        row = to_json(record)
        del row["type"]
        if isinstance(record, self._of_steps):
            self._out.write(("\n" if self._steps == 0 else ",\n") + dumps(row))
            self._steps += 1
        elif type(record) in self._lists:
            self._lists[type(record)].add(dumps(row))

    def close(self, summary: Summary) -> None:
        """Write the lists, the cost and the summary, and finish."""
        self._out.write("\n]" if self._steps else "]")
        for name, kind in _LISTS.items():
            if self._lists[kind].empty and name not in _ALWAYS:
                continue
            self._out.write(f',\n"{name}": [')
            self._lists[kind].move_to(self._out)
            self._out.write("]")
        last = to_json(summary)
        del last["type"]
        compute = dumps(plain(self._totals.to_json()))
        self._out.write(f',\n"compute": {compute},\n"summary": {dumps(last)}\n}}\n')
        super().close(summary)


class _Rows:
    """A list of JSON texts that is read once, at the end."""

    def __init__(self) -> None:
        self._spool = Spool()
        self.empty = True

    def add(self, row: str) -> None:
        self._spool.add(("\n" if self.empty else ",\n") + row)
        self.empty = False

    def move_to(self, out: TextOutput) -> None:
        for line in self._spool.lines():
            out.write(line)
        self._spool.close()
        if not self.empty:
            out.write("\n")
