"""Reader of results: ``.jsonl`` or ``.json`` files into records, in constant memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from costream.core.errors import SourceError, display_name
from costream.core.records import SCHEMA, AnyRecord, Header
from costream.core.schema import from_json
from costream.sinks.json_members import Members

_LINE = 1 << 24  # bytes; longer than any record
_HEAD = 1 << 20
# member of a JSON document -> type of its records
_MEMBERS = {
    "header": "header",
    "predictions": "prediction",
    "objects": "objects",
    "segments": "segment",
    "gaps": "gap",
    "errors": "error",
    "zones": "zone",
    "crossings": "crossing",
    "levels": "level",
    "summary": "summary",
}


class NotAResultError(SourceError):
    """The file does not contain results of costream."""


@dataclass(frozen=True)
class Totals:
    """Cost of a run: the ``compute`` member of a JSON document.

    ``values`` has the form of ``sinks.totals.CostTotals.to_json``.
    """

    values: dict[str, Any]


@dataclass(frozen=True)
class UnreadableRecord:
    """A place that cannot be decoded: ``line`` of a JSONL file, None in a JSON document.

    ``last``: nothing follows; the file is truncated, as after a crash.
    """

    line: int | None
    reason: str
    last: bool


Content: TypeAlias = AnyRecord | Totals | UnreadableRecord
Numbered: TypeAlias = tuple[int | None, Content]


def read_results(path: Path) -> Iterator[Content]:
    """Yield the records of ``path`` in the order of the file.

    Unknown types are skipped, places that cannot be decoded are yielded as Damage. Raise
    SourceError if the file cannot be opened, is empty or of a later schema; NotAResultError if
    it contains no record.
    """
    return (content for _, content in numbered(path))


def numbered(path: Path) -> Iterator[Numbered]:
    """Yield the contents of ``read_results`` with their lines; None in a JSON document."""
    where = display_name(os.fspath(path))
    try:
        # newline: only \n ends a line, so that a stray \r does not shift the numbers
        with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
            yield from _checked(_contents(file, where), where)
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror})", where=where) from error


def runs(path: Path) -> Iterator[Iterator[Content]]:
    """Yield the contents of each run in ``path``: one, or more if runs were written to one pipe.

    A run must be read to its end before the next is requested. Raises as ``read_results``.
    """
    contents = read_results(path)
    begin = next(contents, None)
    while begin is not None:
        ahead: list[Content] = []
        yield _one_run(begin, contents, ahead)
        begin = ahead.pop() if ahead else None


def record_of(line: bytes) -> AnyRecord | None:
    """Return the record in a line of a ``.jsonl`` file; None if it is damaged or of no known type.

    Results of a run are read by ``read_results``, which says what is damaged.
    """
    try:
        fields = json.loads(line)
        return from_json(str(fields["type"]), fields)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _one_run(begin: Content, rest: Iterator[Content], ahead: list[Content]) -> Iterator[Content]:
    """Yield the contents up to the next header, which is put into ``ahead``."""
    headed = isinstance(begin, Header)
    yield begin
    for content in rest:
        if isinstance(content, Header):
            if headed:
                ahead.append(content)
                return
            headed = True
        yield content


def _contents(file: TextIO, where: str) -> Iterator[Numbered]:
    head = file.readline(_HEAD)
    while head.isspace():
        head = file.readline(_HEAD)
    if not head:
        raise SourceError("the file is empty", where=where)
    rest = chain([head], iter(lambda: file.readline(_LINE), ""))
    if isinstance(_object(head).get("type"), str):
        return _lines(rest)
    file.seek(0)
    if not _is_of_a_run(file):
        raise NotAResultError("not a result of costream", where=where)
    file.seek(0)
    return ((None, content) for content in _document(file, where))


def _is_of_a_run(file: TextIO) -> bool:
    """Return whether a JSON document begins with a schema, as ours do, or has a header."""
    try:
        return any(key in ("schema", "header") for key, _ in Members(file))
    except ValueError:
        return False


def _lines(lines: Iterable[str]) -> Iterator[Numbered]:
    """Yield the records of JSON lines."""
    damage: UnreadableRecord | None = None
    for number, line in enumerate(lines, 1):
        if damage is not None:
            yield damage.line, damage
            damage = None
        if line.isspace():
            continue
        fields = _object(line)
        if not fields:
            damage = UnreadableRecord(number, "not a JSON object", last=False)
            continue
        content = _record(str(fields.get("type")), fields, number)
        if content is not None:
            yield number, content
    if damage is not None:
        yield damage.line, UnreadableRecord(damage.line, damage.reason, last=True)


def _document(file: TextIO, where: str) -> Iterator[Content]:
    """Yield the records of a JSON document."""
    schema = ""
    begun = False
    try:
        for key, value in Members(file):
            if key == "schema":
                schema = str(value)
                _check_schema(schema, where)
            elif key == "compute" and isinstance(value, dict):
                yield Totals(value)
            elif key in _MEMBERS and isinstance(value, dict):
                fields = {"schema": schema, **value} if key == "header" else value
                content = _record(_MEMBERS[key], fields, None)
                if content is not None:
                    begun = True
                    yield content
    except ValueError as error:
        if not begun:
            raise NotAResultError("not a result of costream", where=where) from error
        yield UnreadableRecord(None, "the document is truncated", last=True)


def _record(kind: str, fields: dict[str, Any], line: int | None) -> Content | None:
    try:
        return from_json(kind, fields)
    except ValueError as error:
        return UnreadableRecord(line, str(error), last=False)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _checked(contents: Iterable[Numbered], where: str) -> Iterator[Numbered]:
    """Yield the contents. Raises NotAResultError if no record is among them."""
    held: list[Numbered] = []
    found = False
    for line, content in contents:
        if isinstance(content, Header):
            _check_schema(content.schema, where)
        found = found or not isinstance(content, (UnreadableRecord, Totals))
        if not found:
            if len(held) < 100:  # in case of a large file of another kind
                held.append((line, content))
            continue
        yield from held
        held.clear()
        yield line, content
    if not found:
        raise NotAResultError("not a result of costream", where=where)


def _check_schema(schema: str, where: str) -> None:
    name, _, version = schema.partition("/")
    if schema and name != SCHEMA.partition("/")[0]:
        raise NotAResultError(f"not a result of costream (schema {schema!r:.40})", where=where)
    if schema and version != SCHEMA.partition("/")[2]:
        raise SourceError(
            f"results of another schema ({schema!r:.40}, this is {SCHEMA})",
            where=where,
            hint="read them with the version of costream that wrote them",
        )
