"""Records from JSON, and the JSON Schema of them, both from the declarations in ``records``.

Readers of ``costream/1`` ignore types and fields they do not know; fields that a writer left out
get their defaults. ``null`` for a number means that it was not finite.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from costream.core.places import Crossing, ZoneEvent
from costream.core.records import (
    LATEST_S,
    SCHEMA,
    SUM,
    Alert,
    AlertNote,
    AnyRecord,
    Box,
    Compute,
    Fault,
    Gap,
    Head,
    Header,
    Level,
    Objects,
    Prediction,
    Segment,
    StageTimes,
    Summary,
)

RECORDS: dict[str, type[Any]] = {
    record.type: record
    for record in (
        *(Header, Prediction, Objects, Segment, Compute, Gap, Fault, Alert, AlertNote, Level),
        *(ZoneEvent, Crossing, Summary),
    )
}
# Without these a record says nothing; other fields that are missing are empty.
_NEEDED = {"i", "time_s", "start_s", "end_s", "label", "top", "boxes", "macs", "dense_macs"}
_NEEDED |= {"db", "id", "line", "direction", "zone", "event"}
_EMPTY: dict[Any, Any] = {str: "", int: 0, float: math.nan, bool: False, tuple: (), dict: {}}
_LARGEST = 1e30  # no sum, or product, of numbers up to this overflows
_BOX = tuple(f.name for f in fields(Box))


def from_json(kind: str, values: dict[str, Any]) -> AnyRecord | None:
    """Return the record of the type ``kind``; None for an unknown type.

    The inverse of ``records.to_json``. Raises ValueError if a needed field is missing or a field is
    of the wrong type.
    """
    record = RECORDS.get(kind)
    if record is None:
        return None
    try:
        values = _adapted(record, values)
        try:
            found = msgspec.convert(values, record)
        except msgspec.ValidationError:
            found = msgspec.convert(_filled(values, record), record)
        _check(values, found)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"a {kind} record without a valid {_wrong(error)}") from error
    return found  # type: ignore[no-any-return]


def _wrong(error: Exception) -> str:
    """Return the field that an error is about, and what is wrong with it."""
    what, _, where = str(error).partition(" - at `$.")
    missing = re.search(r"missing required field `(\w+)`", what)
    return f"{where.rstrip('`')} ({what})" if where else missing[1] if missing else what


def _check(values: dict[str, Any], record: AnyRecord) -> None:
    """Raise ValueError for numbers that are too large, and for a background that is not a label."""
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise ValueError(f"{name} ({float(value):g})")
    if isinstance(record, Header):
        heads: tuple[Header | Head, ...] = (record, *(record.heads or ()))
        for head in heads:
            if head.background is not None and head.background not in head.labels:
                raise ValueError(f"background ({head.background!r:.40})")


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the records of a type."""
    return with_dialect(_schema([RECORDS[kind]]))


def line_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a line of JSONL results: any of the records."""
    return with_dialect(_schema(list(RECORDS.values())))


def _schema(records: list[type[Any]]) -> dict[str, Any]:
    references, parts = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    for part in parts.values():
        part["properties"] = {name: _nullable(of) for name, of in part["properties"].items()}
    if "Box" in parts:
        parts["Box"] = _box_schema(parts["Box"])
    for record in records:
        of_record = parts[record.__name__]
        of_record["properties"] = {"type": {"const": record.type}, **of_record["properties"]}
        of_record["required"] = ["type", *of_record.get("required", ())]
        if record is Header:
            of_record["properties"]["schema"] = {"const": SCHEMA}
    _describe(parts, [*records, Box, Head, StageTimes])
    choice = references[0] if len(references) == 1 else {"oneOf": list(references)}
    return {**choice, "$defs": parts}


def schema_of(kind: type[Any], described: Iterable[type[Any]]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what a class declares.

    The comments of ``described`` are the descriptions of its properties.
    """
    classes = [kind, *(each for each in described if each is not kind)]
    references, parts = msgspec.json.schema_components(classes, ref_template="#/$defs/{name}")
    _describe(parts, classes)
    return with_dialect({**references[0], "$defs": parts})


def array_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a list of what a schema describes."""
    item = {key: value for key, value in schema.items() if key not in ("$schema", "$defs")}
    parts = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return with_dialect({"type": "array", "items": item, **parts})


def _describe(parts: dict[str, Any], classes: Iterable[type[Any]]) -> None:
    """Add the comments behind the fields of classes to the schemas of their properties."""
    for kind in classes:
        properties = parts.get(kind.__name__, {}).get("properties", {})
        for name, words in comments(kind).items():
            name = name if name in properties else name.replace("_", "-")
            if name in properties:
                properties[name]["description"] = words


def with_dialect(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema that names the draft that it follows, 2020-12."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def comments(kind: type) -> dict[str, str]:
    """Return the comment behind the declaration of each member of a class."""
    found = re.findall(
        r"^    (\w+)(?:: | = )[^#\n]*#(?!:) (.+)$", inspect.getsource(kind), re.MULTILINE
    )
    return dict(found)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that has null, too, for each number that need not be finite."""
    if schema.get("type") == "number" and schema.get("maximum") != LATEST_S:
        return {**schema, "type": ["number", "null"]}
    changed = dict(schema)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            changed[name] = _nullable(schema[name])
    for name in ("anyOf", "prefixItems"):
        if name in schema:
            changed[name] = [_nullable(each) for each in schema[name]]
    return changed


def _box_schema(box: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a box as the row that it is in JSON."""
    columns = [{"title": name, **box["properties"][name]} for name in _BOX]
    needed = len(box["required"])
    return {"title": "Box", "type": "array", "minItems": needed, "prefixItems": columns}


def _adapted(record: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with rows of boxes by name, and with the unit of an older budget."""
    if record is Objects and isinstance(values.get("boxes"), list):
        rows = [dict(zip(_BOX, row, strict=False)) for row in values["boxes"]]
        return {**values, "boxes": rows}
    if record is Compute and values.get("budget") is not None:
        return _with_unit(values)
    return values


def _with_unit(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a compute record whose budget has a unit.

    Older results have only ``budget``. No step of a network has less than a million MACs, or takes
    as many milliseconds; a share of the steps is at most 1, and those models have no tokens.
    """
    budget = values["budget"]
    if any(values.get(f"budget_{unit}") is not None for unit in ("ms", "macs", "share")):
        return values
    if not isinstance(budget, (int, float)) or isinstance(budget, bool):
        raise ValueError(f"budget ({budget!r:.40})")
    if budget >= 1e6:
        return {**values, "budget_macs": budget}
    is_share = budget <= 1 and values.get("tokens") is None
    return {**values, "budget_share" if is_share else "budget_ms": budget}


@cache
def _hints(record: type[Any]) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, and whether it has to be filled."""
    hints = get_type_hints(record, include_extras=True)
    return {
        f.name: (hints[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in fields(record)
    }


def _filled(value: Any, hint: Any) -> Any:
    """Return a JSON value with NaN (of sums 0) for null, and what is missing empty."""
    if is_dataclass(hint) and isinstance(value, dict):
        return _filled_record(value, hint)
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        is_null = value is None and parts[0] is float
        return _empty(hint) if is_null else _filled(value, parts[0])
    if kind in (Union, types.UnionType):
        return None if value is None else _filled(value, parts[0])
    if kind is tuple and isinstance(value, list):
        kinds = [parts[0]] * len(value) if parts[1:] == (...,) else parts
        return [_filled(v, part) for v, part in zip(value, kinds, strict=False)]
    if kind is dict and isinstance(value, dict):
        return {key: _filled(each, parts[1]) for key, each in value.items()}
    return math.nan if value is None and hint is float else value


def _filled_record(values: dict[str, Any], record: Any) -> dict[str, Any]:
    filled = {}
    for name, (hint, must) in _hints(record).items():
        if name in values:
            filled[name] = _filled(values[name], hint)
        elif must and name not in _NEEDED:
            filled[name] = _empty(hint)
    return filled


def _empty(hint: Any) -> Any:
    """Return the empty value of a type: '', (), NaN, for sums 0, None where it is allowed."""
    if is_dataclass(hint):
        return _filled({}, hint)
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return None
    if kind is Annotated:
        return 0.0 if SUM in parts else _empty(parts[0])
    return _EMPTY.get(kind or hint)
