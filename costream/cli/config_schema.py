"""The JSON Schema of configuration files, made from the options that check them."""

from __future__ import annotations

from typing import Any

import click

from costream.core.schema import with_dialect
from costream.core.settings import COMMANDS, OUTWARD, PROJECT_FILE
from costream.options.click_options import Option


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of costream.toml and the user's config.toml.

    A key is the long name of an option. A key above the tables is for all commands, one in the
    table of a command for this command.
    """
    from costream.cli import cli

    tables: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        properties = {}
        for param in command.params:
            if isinstance(param, click.Option) and param.expose_value:
                properties[_key(param)] = _schema(param)
        tables[name] = {
            "type": "object",
            "description": command.get_short_help_str(limit=200),
            "properties": properties,
            "additionalProperties": False,
        }
        shared = {**properties, **shared}
    references = {name: {"$ref": f"#/$defs/{name}"} for name in tables}
    return with_dialect(
        {
            "title": PROJECT_FILE,
            "type": "object",
            "properties": {**shared, **references},
            "additionalProperties": False,
            "$defs": tables,
        }
    )


def _key(option: click.Option) -> str:
    """Return the key of an option: ``top-k`` for ``--top-k``."""
    long = next(name for name in option.opts if name.startswith("--"))
    return long.removeprefix("--").removeprefix("no-") if option.secondary_opts else long[2:]


def _schema(option: click.Option) -> dict[str, Any]:
    """Return the schema of an option's values, with its help."""
    value = _value_schema(option)
    if option.multiple:
        value = {"anyOf": [value, {"type": "array", "items": value}]}
    words = " ".join((option.help or "").split())
    if _key(option).replace("-", "_") in OUTWARD:
        words = f"{words} Not in a {PROJECT_FILE} of the current folder."
    return {"description": words, **value}


def _value_schema(option: click.Option) -> dict[str, Any]:
    if option.count:
        return {"type": ["integer", "boolean"], "minimum": 0}
    if option.is_flag:
        return {"type": "boolean"}
    kind = option.type
    if isinstance(kind, click.Choice):
        return {"enum": list(kind.choices)}
    if isinstance(option, Option) and option.parse is not None:
        return {"type": ["string", "number"]}
    if isinstance(kind, click.IntRange):
        return {"type": "integer", **_limits(kind)}
    if isinstance(kind, click.FloatRange):
        return {"type": "number", **_limits(kind)}
    return {"type": {"integer": "integer", "float": "number"}.get(kind.name, "string")}


def _limits(kind: click.IntRange | click.FloatRange) -> dict[str, Any]:
    limits = {
        "exclusiveMinimum" if kind.min_open else "minimum": kind.min,
        "exclusiveMaximum" if kind.max_open else "maximum": kind.max,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}
