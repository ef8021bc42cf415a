"""``costream schema``: the JSON Schema of records, files, and what commands print as JSON."""

from __future__ import annotations

import json
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem

from costream.cli.click_command import Command
from costream.core.errors import UsageError
from costream.core.formatting import suggest_names
from costream.core.schema import RECORDS, array_of, json_schema, line_schema, schema_of

# Name -> the class that declares it, or the function that returns its schema.
FILES = {
    "card": "costream.weights_io.card:card_schema",
    "feeds": "costream.runtime.watch.feed_list:feeds_schema",
    "config": "costream.cli.config_schema:config_schema",
    "event": "costream.sinks.event_search:event_schema",
    "match": "costream.runtime.find:match_schema",
    "batch": "costream.runtime.batch.tables:BatchTotals",
}
# What commands print with --json: the same; in brackets, a list of them.
PRINTED = {
    "bench": "[costream.core.tables:JsonTable]",
    "clips": "[costream.cli.clips:WrittenClip]",
    "diff": "costream.report.comparison:ComparedRuns",
    "doctor": "[costream.cli.doctor:Finding]",
    "doctor-files": "[costream.cli.file_report:FileReport]",
    "doctor-tune": "costream.core.tables:JsonTable",
    "evaluate": "costream.evaluation.command:Evaluation",
    "find": "[costream.runtime.find:match_schema]",
    "models-fetch": "[costream.cli.models_fetch:published_schema]",
    "models-list": "[costream.cli.models_show:ListedModel]",
    "models-show": "costream.cli.models_show:shown_schema",
    "models-verify": "[costream.cli.models_verify:Verification]",
    "search": "[costream.sinks.event_search:event_schema]",
}
NAMES = (*RECORDS, *FILES, *PRINTED)


def _schema_names(_: click.Context, __: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Return the names of schemas that begin with ``word``."""
    return [CompletionItem(name) for name in NAMES if name.startswith(word)]


@click.command(cls=Command, epilog=f"What commands print with --json: {', '.join(PRINTED)}.")
@click.argument("name", required=False, shell_complete=_schema_names)
def command(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) of results, files, and what commands print.

    NAME is a type of record (header, prediction, segment, ...), 'card' for model cards, 'feeds' for
    lists of feeds, 'config' for costream.toml, 'batch' for the summary.json of a batch, 'event' and
    'match' for an entry of what search and find print, or a command that prints JSON. Without NAME:
    the schema of a line of JSONL results, which is one of the records.

    \b
    costream schema > costream-1.schema.json
    costream schema segment
    costream schema config > costream.schema.json
    costream schema models-list
    """
    click.echo(json.dumps(schema(name), indent=2))


def schema(name: str | None = None) -> dict[str, Any]:
    """Return the schema of this name; None: of a line of results. UsageError if there is none."""
    if name is None:
        return line_schema()
    if name in RECORDS:
        return json_schema(name)
    place = FILES.get(name) or PRINTED.get(name)
    if place is None:
        raise UsageError(f"there is no schema {name!r}", hint=suggest_names(name, NAMES))
    declared = resolve_name(place.strip("[]"))
    found = schema_of(declared, (declared,)) if isinstance(declared, type) else declared()
    return array_of(found) if place.startswith("[") else found
