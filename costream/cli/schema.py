"""``costream schema``: the JSON Schema of records and model cards."""

from __future__ import annotations

import click

from costream.cli.click_command import Command
from costream.core.errors import UsageError
from costream.core.formatting import suggest_names


@click.command(cls=Command)
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) of a record type or of model cards.

    NAME: header, prediction, segment, ..., or card; without it, the schema of a line of
    JSONL files, which is one of the records.

    \b
    costream schema > costream-1.schema.json
    costream schema segment
    """
    import json

    from costream.core.schema import RECORDS, json_schema, line_schema

    if name is None:
        schema = line_schema()
    elif name in RECORDS:
        schema = json_schema(name)
    elif name == "card":
        from costream.weights_io.card import card_schema

        schema = card_schema()
    else:
        hint = suggest_names(name, [*RECORDS, "card"])
        raise UsageError(f"there is no schema {name!r}", hint=hint)
    click.echo(json.dumps(schema, indent=2))
