"""``costream schema``: the JSON Schema of results, model cards, lists of feeds and settings."""

from __future__ import annotations

import json
from typing import Any

import click
from click.shell_completion import CompletionItem

from costream.cli.click_command import Command
from costream.core.errors import UsageError
from costream.core.formatting import suggest_names
from costream.core.schema import RECORDS, json_schema, line_schema

FILES = ("card", "feeds", "config", "event", "match")


def _schema_names(_: click.Context, __: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Return the names of schemas that begin with ``word``."""
    return [CompletionItem(name) for name in (*RECORDS, *FILES) if name.startswith(word)]


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=_schema_names)
def command(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) of results and other files.

    NAME is a type of record (header, prediction, segment, ...), 'card' for model cards, 'feeds' for
    lists of feeds, 'config' for costream.toml, 'event' for what 'search --json' prints a list of,
    'match' for what 'find --json' does. Without NAME: the schema of a line of JSONL results, which
    is one of the records.

    \b
    costream schema > costream-1.schema.json
    costream schema segment
    costream schema config > costream.schema.json
    """
    click.echo(json.dumps(_schema(name), indent=2))


def _schema(name: str | None) -> dict[str, Any]:
    if name is None:
        return line_schema()
    if name in RECORDS:
        return json_schema(name)
    if name == "card":
        from costream.weights_io.card import card_schema

        return card_schema()
    if name == "feeds":
        from costream.runtime.watch.feed_list import feeds_schema

        return feeds_schema()
    if name == "config":
        from costream.cli.config_schema import config_schema

        return config_schema()
    if name == "event":
        from costream.sinks.event_search import event_schema

        return event_schema()
    if name == "match":
        from costream.runtime.find import match_schema

        return match_schema()
    hint = suggest_names(name, [*RECORDS, *FILES])
    raise UsageError(f"there is no schema {name!r}", hint=hint)
