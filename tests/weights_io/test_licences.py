"""Licence classes: of identifiers, of what is made from several parts, and what they allow."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costream
from costream.__main__ import main
from costream.core.errors import ExitCode, ModelError, UsageError
from costream.models.catalogue import check_licence
from costream.weights_io.card import Card, card_schema
from costream.weights_io.file import read_card, read_weights, write_weights
from costream.weights_io.import_settings import CARD_KEYS, ImportSettings
from costream.weights_io.licences import (
    CLASSES,
    UNKNOWN,
    class_of,
    is_allowed,
    licence_class,
    narrowest,
)
from kit.paths import RESEARCH, SAMPLES, SHIPPED, WEIGHTS

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


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"licence": "MIT"}, "free"),
        ({"licence": "MIT", "licence_class": "research"}, "research"),
        ({"licence": "ask us"}, None),
        ({}, None),
    ],
)
def test_an_import_takes_the_class_of_an_identifier_or_of_a_setting(config, expected):
    assert ImportSettings(config, CARD_KEYS).terms["licence_class"] == expected


def test_an_import_refuses_another_class():
    with pytest.raises(UsageError, match=r"licence_class=x: not free, non-commercial or research"):
        ImportSettings({"licence_class": "x"}, CARD_KEYS)


def test_models_that_run_together_have_the_narrower_class():
    card = costream.load_model("nanodet,cosounds", device="cpu").card
    assert card.licence_class == "research"
    assert card.licence.startswith("nanodet: Apache-2.0")
    assert "; cosounds: Research use only" in card.licence


def test_python_refuses_as_the_command_line_does():
    with pytest.raises(UsageError, match=r"--licence free refuses cooadtr"):
        costream.load_model("cooadtr", licence="free")
    with pytest.raises(UsageError, match=r"refuses cotrans"):
        costream.listen(SAMPLES / "street.ogg", "cotrans", licence="free").collect()
    with pytest.raises(UsageError, match=r"licence='mine'; known: free, non-commercial"):
        costream.load_model("mn04", licence="mine")
    model = costream.load_model("mn04", licence="free")
    with pytest.raises(UsageError, match="the model is loaded already"):
        costream.listen(SAMPLES / "street.ogg", model, licence="free")


@pytest.mark.parametrize("where", ["flag", "variable", "file"])
def test_every_command_that_runs_a_model_refuses(where, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    flags = ("--licence", "free") if where == "flag" else ()
    if where == "variable":
        monkeypatch.setenv("COSTREAM_LICENCE", "free")
    if where == "file":
        (tmp_path / "costream.toml").write_text('licence = "free"\n')
    room, street = str(SAMPLES / "room.mp4"), str(SAMPLES / "street.ogg")
    for model, *line in (
        ("cooadtr", "detect", room),
        ("cosounds", "listen", street),
        ("cooadtr", "watch", room, "--realtime"),
        ("cooadtr", "batch", room, "-o", "out"),
        ("cooadtr", "features", room, "-o", "out.npz"),
        ("cooadtr", "evaluate", "--data", str(SAMPLES)),
        ("cooadtr", "train", "--data", str(SAMPLES)),
    ):
        named = (model,) if line[0] == "train" else ("-m", model)
        assert main([*line, *named, *flags]) == ExitCode.USAGE
        found = capsys.readouterr()
        assert (found.out, found.err.count("\n")) == ("", 1)
        assert found.err.startswith(
            f"costream: --licence free refuses {model} (research use only);"
        )
    assert {path.name for path in tmp_path.iterdir()} <= {"costream.toml", "none"}
