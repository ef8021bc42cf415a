"""Completion of the values of options, by their names and metavars, and of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def completer(names: Sequence[str], metavar: str) -> Completer | None:
    """Return the completer of an option; None if its values cannot be listed."""
    if "--model" in names:
        return model_names
    if "--format" in names:
        return format_names
    if "--layout" in names:
        return layout_names
    kinds = metavar.strip("[]").split("|")
    if any(kind.startswith(("FILE", "PATH")) for kind in kinds):
        return file_names
    return folder_names if "FOLDER" in kinds else None


def file_names(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Complete files, by the shell."""
    return [_item(word, type="file")]


def folder_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete folders, by the shell."""
    return [_item(word, type="dir")]


def model_names(ctx: click.Context, param: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Complete the models that have weights here, one or a list; else weight files."""
    from costream.models.catalogue import list_models

    models = {e.name: e.summary for e in list_models() if e.path is not None}
    return in_list(models, word) or file_names(ctx, param, word)


def published_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete the checkpoints that can be fetched."""
    from costream.weights_io.store import published

    return in_list({name: entry.source for name, entry in published().items()}, word)


def format_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete output formats, one or a list."""
    from costream.sinks.registry import FORMATS

    return in_list({name: FORMATS[name].about for name in FORMATS}, word)


def layout_names(
    ctx: click.Context, param: click.Parameter, word: str
) -> list[CompletionItem[str]]:
    """Complete layouts of joints; else files."""
    from costream.core.layouts import LAYOUTS, marker_sets

    return in_list(dict.fromkeys((*LAYOUTS, *marker_sets()), ""), word) or file_names(
        ctx, param, word
    )


def in_list(values: dict[str, str], word: str) -> list[CompletionItem[str]]:
    """Return the values for the last item of a comma-separated list, with their help."""
    head, comma, last = word.rpartition(",")
    named = head.split(",")
    return [
        _item(head + comma + value, help=text)
        for value, text in values.items()
        if value.startswith(last) and value not in named
    ]


def _item(word: str, **about: Any) -> CompletionItem[str]:
    from click.shell_completion import CompletionItem  # imported when somebody presses Tab

    return CompletionItem(word, **about)
