"""JSON Schemas of model cards, lists of feeds and configuration files."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from costream.cli.config_schema import config_schema
from costream.cli.help import pages
from costream.runtime.find import Match, match_schema
from costream.runtime.watch.feed_list import feeds_schema
from costream.sinks.event_search import StoredEvent, event_schema
from costream.weights_io.card import card_schema
from costream.weights_io.file import read_card
from kit.paths import SHIPPED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

jsonschema = pytest.importorskip("jsonschema")


def read_blocks(page: str) -> list[dict[str, Any]]:
    """Return the TOML examples of a page of the manual."""
    blocks = re.findall(r"^```toml\n(.*?)^```", pages()[page], re.MULTILINE | re.DOTALL)
    return [tomllib.loads(block) for block in blocks]


def test_examples_of_the_manual_fit_the_schemas() -> None:
    lists = [block for block in read_blocks("watch") if "feed" in block]
    settings_files = read_blocks("configuration")
    assert lists
    assert settings_files
    for block in lists:
        jsonschema.validate(block, feeds_schema())
    for block in settings_files:
        jsonschema.validate(block, config_schema())


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (feeds_schema(), {"feed": []}),
        (feeds_schema(), {"feed": [{"url": "mic", "nmae": "x"}]}),
        (feeds_schema(), {"feed": [{"url": "mic", "channel": 0}]}),
        (config_schema(), {"top-q": 5}),
        (config_schema(), {"top-k": 0}),
        (config_schema(), {"detect": {"engine": "ray"}}),
        (card_schema(), {"name": "x"}),
    ],
)
def test_schemas_refuse_what_the_reader_refuses(schema: Any, wrong: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


def test_shipped_cards_fit_the_schema_of_cards() -> None:
    for path in SHIPPED:
        jsonschema.validate(json.loads(read_card(path).to_json()), card_schema())


def test_rows_of_search_and_find_fit_their_schemas() -> None:
    nothing = dict.fromkeys(("model", "person", "object_id", "place", "direction", "rule", "clip"))
    found = {"reason": None, "picture": None, **nothing}
    event = StoredEvent(1, "door", "segment", 5.0, 6.0, "fall", 0.9, **found).to_json()
    match = Match("a.mp4", 1.0, 0.9, ("fall",)).to_json()
    for row, schema in ((event, event_schema()), (match, match_schema())):
        jsonschema.validate(row, schema)
        (kind,) = (k for k in schema["$defs"].values() if k["title"] in ("StoredEvent", "Match"))
        assert row.keys() <= kind["properties"].keys()
        assert not jsonschema.Draft202012Validator(schema).is_valid({**row, min(row): None})
