"""Licence classes: of identifiers, of what is made from several parts, and what they allow."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import ModelError, UsageError
from costream.models.catalogue import check_licence
from costream.weights_io.card import Card, card_schema
from costream.weights_io.file import read_card, read_weights, write_weights
from costream.weights_io.licences import (
    CLASSES,
    UNKNOWN,
    class_of,
    is_allowed,
    licence_class,
    narrowest,
)
from kit.paths import RESEARCH, SHIPPED, WEIGHTS

PARTS = st.lists(st.sampled_from([*CLASSES, None]), min_size=1)


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", "free"),
        ("Apache-2.0", "free"),
        ("CC-BY-4.0", "free"),
        ("CC-BY-SA-3.0", "free"),
        ("AGPL-3.0-or-later", "free"),
        ("cc-by-nc-4.0", "non-commercial"),
        ("CC-BY-NC-ND-4.0", "non-commercial"),
        ("CC-BY-ND-4.0", None),
        ("NOASSERTION", None),
        ("MIT, but not for companies", None),
        ("MITRE", None),
        ("Licence of the examples", None),
        ("", None),
    ],
)
def test_the_class_of_an_identifier(licence, expected):
    assert class_of(licence) == expected


@given(PARTS)
def test_what_is_made_of_parts_is_allowed_only_where_each_part_is(parts):
    result = narrowest(parts) or UNKNOWN
    for allowed in (None, "any", "free", "non-commercial"):
        assert is_allowed(result, allowed) == all(is_allowed(p or UNKNOWN, allowed) for p in parts)


def test_research_stays_research_whatever_else_is_unknown():
    for parts in itertools.permutations(["research", None, "free"]):
        assert narrowest(parts) == "research"
    assert narrowest([]) is None


def test_a_card_without_a_class_is_of_unknown_class_and_not_free(tmp_path):
    stored = read_weights(WEIGHTS / "mn04.safetensors")
    text = json.loads(stored.card.to_json())
    assert text.pop("licence_class") == "free"
    old = Card.from_json(json.dumps(text))
    assert licence_class(old) == UNKNOWN
    path = tmp_path / "old.safetensors"
    write_weights(path, old, stored.tensors)
    with pytest.raises(UsageError, match=r"refuses .*old\.safetensors \(use unknown\)"):
        check_licence(str(path), None, "free")
    check_licence(str(path), None, "any")


def test_a_card_with_an_impossible_class_is_refused():
    text = json.loads(read_card(WEIGHTS / "mn04.safetensors").to_json()) | {"licence_class": "x"}
    with pytest.raises(ModelError, match="licence_class 'x' is not free or non-commercial or res"):
        Card.from_json(json.dumps(text))


def test_the_schema_of_cards_lists_the_classes():
    field = card_schema()["$defs"]["Card"]["properties"]["licence_class"]
    assert set(CLASSES) <= set(str(field).replace("'", " ").split())


def test_each_part_of_a_name_is_checked():
    check_licence("nanodet,mn04", None, "free")
    check_licence("cooadtr,mn04", None, None)
    with pytest.raises(UsageError, match=r"free refuses cosounds .*free for any use: mn04"):
        check_licence("nanodet, cosounds", None, "free")
    with pytest.raises(UsageError, match=r"refuses eventful-vitdet .*free for any use: nanodet"):
        check_licence("eventful-vitdet", None, "non-commercial")


def test_a_refusal_names_a_free_model_to_fetch_if_none_is_here():
    with pytest.raises(UsageError, match=r"movinet-a0 \(costream models fetch movinet-a0\)"):
        check_licence("cooadtr", None, "free")


def test_a_class_that_allows_more_uses_passes_what_a_narrower_one_passes(tmp_path):
    stored = read_weights(WEIGHTS / "mn04.safetensors")
    path = tmp_path / "mine.safetensors"
    write_weights(path, replace(stored.card, licence_class="non-commercial"), stored.tensors)
    check_licence(str(path), None, "non-commercial")
    with pytest.raises(UsageError, match="non-commercial use only"):
        check_licence(str(path), None, "free")


def test_every_shipped_card_has_a_class():
    for folder, use in ((WEIGHTS, "free"), (RESEARCH, "research")):
        assert {read_card(p).licence_class for p in SHIPPED if p.parent == folder} == {use}
