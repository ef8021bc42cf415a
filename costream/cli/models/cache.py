"""``costream models path`` and ``remove``: print the paths of weights, and delete them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from costream.checkpoints.file import SUFFIX
from costream.cli.models_fetch import download_of
from costream.errors import ModelError, OutputError, UsageError
from costream.models.registry import cache_folder, downloads_folder, find_weights, published


@click.command("path")
@click.argument("name")
def path_command(name: str) -> None:
    """Print the file of the weights in use, or of a checkpoint that was fetched as a part."""
    part = published().get(name)
    if part is None or part.config is not None:
        click.echo(str(find_weights(name)))
        return
    if not download_of(part).exists():
        raise ModelError(f"{name} is not downloaded", hint=f"costream models fetch {name}")
    click.echo(str(download_of(part)))


@click.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def remove_command(names: tuple[str, ...], yes: bool) -> None:
    """Delete imported and fetched weights, and leftover downloads, from the user cache."""
    paths = [path for name in dict.fromkeys(names) for path in _of(name)]
    if not yes:
        listed = "\n".join(map(str, paths))
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{listed} would be deleted", hint="confirm with --yes")
        if not click.confirm(f"{listed}\nDelete?", err=True):
            raise UsageError("nothing was deleted")
    for path in paths:
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputError(f"cannot be deleted ({reason})", where=path) from error
        click.echo(f"deleted {path}", err=True)


def _of(name: str) -> list[Path]:
    """Return the files of a name in the cache. Raise UsageError or ModelError if there are none."""
    weights, downloads = cache_folder().glob(f"*{SUFFIX}"), downloads_folder().glob("*")
    found = [path for path in weights if path.name == f"{name}{SUFFIX}"]
    found += [path for path in downloads if path.name == name]
    if not found:
        hint = "only what was fetched or imported can be removed"
        raise UsageError("is not in the user cache", where=find_weights(name), hint=hint)
    return found
