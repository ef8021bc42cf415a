"""``costream models``: commands for models and their weights, one module each."""

from __future__ import annotations

import click

from costream.cli.models.cache import path_command, remove_command
from costream.cli.models.importing import import_command
from costream.cli.models.initialising import init_command
from costream.cli.models.overview import list_command, show_command
from costream.cli.models.verifying import verify_command
from costream.cli.models_fetch import fetch_command


@click.group()
def command() -> None:
    """List, show, fetch, import, create and verify models and their weights."""


for _command in (
    *(list_command, show_command, path_command),
    *(fetch_command, import_command, init_command, verify_command, remove_command),
):
    command.add_command(_command)
