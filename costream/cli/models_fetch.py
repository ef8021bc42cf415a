"""``costream models fetch``: published checkpoints, downloaded and imported."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import IO

import click

from costream.checkpoints.file import SUFFIX
from costream.checkpoints.published import FILE, NO_LICENCE, Published, read_published
from costream.cli.models.importing import convert
from costream.cli.models.text import print_json, print_table
from costream.cli.options import option
from costream.errors import ModelError, OutputError, UsageError
from costream.models.registry import cache_folder, downloads_folder, shipped_folder, suggest_names
from costream.runtime.stop import StopHandler, Stopped
from costream.sinks.locking import try_lock


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--accept-licence", "--accept-license", is_flag=True, help="Accept the licences without asking."
)
@option("--offline/--no-offline", default=False, help="Use no network.")
@click.option(
    "--list",
    "table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.toml",
    help="List of checkpoints to use instead of costream's own.",
)
@click.option("--json", "as_json", is_flag=True, help="Without a name: print JSON.")
def fetch_command(
    names: tuple[str, ...], accept_licence: bool, offline: bool, table: Path | None, as_json: bool
) -> None:
    """Download published checkpoints and import them; prints the files. Without a name, list them.

    Repeat the command to resume a download that was interrupted. No code in a checkpoint is
    executed. Proxies are taken from HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
    """
    known = read_published(table or shipped_folder() / FILE)
    if not names:
        _print_list(known, as_json)
        return
    for name in names:
        if name not in known:
            raise UsageError(f"no published checkpoint {name!r}", hint=suggest_names(name, known))
    wanted = [known[name] for name in dict.fromkeys(names)]
    missing = [e for e in wanted if not (target_of(e).exists() or download_of(e).exists())]
    for entry in missing:
        if entry.by_hand is not None:
            raise UsageError(f"{entry.name} must be downloaded manually", hint=_by_hand(entry))
        if offline:
            raise UsageError(f"--offline, but {entry.name} is not downloaded", where=entry.url)
        if not accept_licence:
            _ask(entry)
    with StopHandler():
        for entry in wanted:
            click.echo(str(_fetch(entry)))


def target_of(entry: Published) -> Path:
    """Return the final file of a fetched entry: a model's weights, or a part as downloaded."""
    return download_of(entry) if entry.config is None else cache_folder() / f"{entry.name}{SUFFIX}"


def download_of(entry: Published) -> Path:
    """Return the file that an entry is downloaded to."""
    return downloads_folder() / entry.name / entry.file


def _fetch(entry: Published) -> Path:
    target, file = target_of(entry), download_of(entry)
    if target.exists():
        click.echo(f"{entry.name}: already downloaded", err=True)
        return target
    if not file.exists():
        _download(entry, file)
    if entry.config is None:
        click.echo(f"{entry.name}: {entry.note}".rstrip(": "), err=True)
        return file
    said = {"licence": entry.licence, "trained_on": entry.source}
    try:
        convert([file], entry.name, {**said, **entry.config}, target)
    except (ModelError, UsageError) as error:
        raise ModelError(
            f"cannot be imported ({error})",
            where=entry.name,
            hint=f"the download is kept; costream models remove {entry.name} deletes it",
        ) from error
    shutil.rmtree(file.parent, ignore_errors=True)
    return target


def _download(entry: Published, file: Path) -> None:
    from costream.checkpoints.download import download
    from costream.ui.transfer import Transfer

    with _lock(file), Transfer(entry.name) as transfer:
        if file.exists():
            return  # another process was faster
        transfer.say(f"about {entry.megabytes:g} MB from {entry.url}")
        try:
            download(entry.url, file, transfer, entry.algorithm, entry.digest)
        except Stopped:
            transfer.say("stopped; repeat the command to resume")
            raise


def _lock(file: Path) -> IO[str]:
    """Return a locked file; raise ModelError if another process is downloading."""
    path = file.with_name(f"{file.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=path) from error
    if not try_lock(lock):
        lock.close()
        raise ModelError("is being downloaded by another process", where=file)
    return lock


def _ask(entry: Published) -> None:
    """Ask to accept the licence. Raise UsageError if it is refused, or there is no terminal."""
    if entry.licence == NO_LICENCE:
        licence = "its authors state no licence"
    else:
        licence = f"its licence is {entry.licence}"
    about = f"{entry.name} ({entry.source}): {licence}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(about, hint="accept it with --accept-licence")
    if not click.confirm(f"{about}. Fetch {entry.megabytes:g} MB and accept that?", err=True):
        raise UsageError(f"the licence of {entry.name} was not accepted: nothing was fetched")


def _by_hand(entry: Published) -> str:
    pairs = "".join(f" --config {k}={v}" for k, v in (entry.config or {}).items())
    return (
        f"open {entry.url} in a browser, save {entry.by_hand}, then: costream models import"
        f" {entry.by_hand} --name {entry.name}{pairs}"
    )


def _print_list(known: dict[str, Published], as_json: bool) -> None:
    paths = {name: target_of(entry) for name, entry in known.items()}
    if as_json:
        print_json(
            [
                {**dataclasses.asdict(e), "path": str(paths[n]) if paths[n].exists() else None}
                for n, e in known.items()
            ]
        )
        return
    rows = [("NAME", "MB", "LICENCE", "FETCHED", "DESCRIPTION")]
    for name, e in known.items():
        note = " (manual)" if e.by_hand else ""
        licence = "none stated" if e.licence == NO_LICENCE else e.licence
        here = "yes" if paths[name].exists() else "no"
        rows.append((name, f"{e.megabytes:g}", licence, here, f"{e.source}{note}"))
    print_table(rows)
