"""Records as they are declared: each field comes back, the schema describes what is written."""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import dumps, to_json
from costream.core.schema import RECORDS, from_json, json_schema, line_schema
from kit.program import costream

jsonschema = pytest.importorskip("jsonschema")
NUMBERS = st.one_of(st.floats(-1e9, 1e9).map(lambda x: round(x, 6)), st.just(0.0))
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type; every optional field has one."""
    if dataclasses.is_dataclass(hint):
        return records(hint)
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return values(parts[0])
    if kind in (Union, types.UnionType):
        return values(parts[0])
    if kind is tuple and parts[1:] == (...,):
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if kind is tuple:
        return st.tuples(*map(values, parts))
    if kind is dict:
        return st.dictionaries(WORDS, NUMBERS if parts[1] is Any else values(parts[1]), max_size=3)
    basic = {str: WORDS, int: st.integers(0, 1 << 40), float: NUMBERS, bool: st.booleans()}
    return basic[hint]


def records(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {f.name: values(hints[f.name]) for f in dataclasses.fields(kind)}
    if "background" in fields:
        fields["background"] = st.none()  # one of the labels: has a test of its own
    if kind.__name__ == "Header":
        fields["schema"] = st.just("costream/1")
    return st.builds(kind, **fields)


RECORD = {kind: records(record) for kind, record in RECORDS.items()}
FITS = {kind: jsonschema.Draft202012Validator(json_schema(kind)) for kind in RECORDS}
LINE = jsonschema.Draft202012Validator(line_schema())


@pytest.mark.parametrize("kind", RECORDS)
@settings(max_examples=20)
@given(data=st.data())
def test_every_field_of_every_record_comes_back(kind: str, data: st.DataObject) -> None:
    record = data.draw(RECORD[kind])
    row = json.loads(dumps(to_json(record)))
    assert from_json(kind, row) == record
    FITS[kind].validate(row)


@pytest.mark.parametrize("kind", RECORDS)
@settings(max_examples=3)
@given(data=st.data())
def test_a_line_fits_the_schema_of_one_type_alone(kind: str, data: st.DataObject) -> None:
    row = json.loads(dumps(to_json(data.draw(RECORD[kind]))))
    assert LINE.is_valid({**row, "feed": "door", "something new": [1]})
    assert not LINE.is_valid({**row, "type": "weather"})


def test_numbers_that_are_not_finite_fit_the_schema() -> None:
    row = {"type": "segment", "start_s": 0.0, "end_s": 1.0, "label": "walk", "score": None}
    FITS["segment"].validate(row)
    with pytest.raises(jsonschema.ValidationError):
        FITS["segment"].validate({**row, "start_s": None})


def test_the_command_prints_schemas_and_names_them() -> None:
    done = costream("schema", "prediction")
    assert json.loads(done.stdout) == json_schema("prediction")
    assert json.loads(costream("schema").stdout) == json.loads(json.dumps(line_schema()))
    assert json.loads(costream("schema", "card").stdout)["$ref"] == "#/$defs/Card"
    wrong = costream("schema", "prediktion")
    assert wrong.returncode == 2
    assert "prediction" in wrong.stderr
