"""``costream models``: the group of the commands for models and their weights."""

from __future__ import annotations

import click

from costream.cli import SuggestingGroup
from costream.cli.models_convert import compress_command, export_command
from costream.cli.models_fetch import fetch_command, import_command, path_command, remove_command
from costream.cli.models_init import init_command
from costream.cli.models_push import push_command
from costream.cli.models_show import list_command, show_command
from costream.cli.models_verify import verify_command


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, show, fetch, import, create and verify models and their weights."""


for _command in (
    *(list_command, show_command, path_command),
    *(fetch_command, import_command, init_command, compress_command, export_command),
    verify_command,
    push_command,
    remove_command,
):
    command.add_command(_command)
