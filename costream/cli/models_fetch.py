"""``costream models fetch``, ``path``, ``remove`` and ``import``: weights in the user cache."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from costream.cli.click_command import Command
from costream.cli.printing import check_weight_file, print_json, print_table
from costream.core.errors import (
    ModelError,
    OutputError,
    UsageError,
    display_name,
    message,
    printable,
    say,
)
from costream.core.formatting import counted, listed, print_path, suggest_names
from costream.core.locks import append_own, try_lock
from costream.core.schema import schema_of
from costream.core.user_code import split_spec
from costream.models.catalogue import find_weights, kind_of
from costream.options.click_options import option
from costream.options.completers import model_names, published_names
from costream.runtime.stop import StopHandler, Stopped
from costream.weights_io.file import SUFFIX, read_card, read_header, write_whole
from costream.weights_io.hub import (
    PREFIX,
    HubAddress,
    fetch_hub_file,
    find_hub_file,
    read_address,
)
from costream.weights_io.import_settings import (
    KEYS,
    ImportSettings,
    check_published,
    published_labels,
    read_pairs,
)
from costream.weights_io.importer import IMPORTERS
from costream.weights_io.licences import UNKNOWN, licence_class
from costream.weights_io.published import FILE, NO_LICENCE, Published, read_published
from costream.weights_io.store import cache_folder, downloads_folder, published, shipped_folder


@click.command("fetch", cls=Command, short_help="Download and import published checkpoints.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=published_names)
@click.option(
    "--accept-licence", "--accept-license", is_flag=True, help="Accept the licences without asking."
)
@option("--offline/--no-offline", default=False, help="Use no network.")
@click.option(
    "--list",
    "table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.toml",
    help="List of checkpoints to use instead of costream's.",
)
@click.option("--all", "every", is_flag=True, help="Without a name: list all, with their sources.")
@click.option("--json", "as_json", is_flag=True, help="Without a name: print JSON.")
def fetch_command(
    names: tuple[str, ...],
    accept_licence: bool,
    offline: bool,
    table: Path | None,
    every: bool,
    as_json: bool,
) -> None:
    """Download published checkpoints, import them and print the files. Without NAME: list them.

    NAME may be a repository of the Hugging Face hub, hf:OWNER/NAME (extra hub); the model is then
    named OWNER--NAME. hf:OWNER/NAME/FILE@REVISION selects a file and a revision.

    Repeat the command to resume a download that was interrupted. No code in a checkpoint is
    executed. Proxies are taken from HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
    """
    table = table or shipped_folder() / FILE
    entries = read_published(table)
    for name, entry in entries.items():
        check_published(entry.config or {}, f"{table}: [{name}]")
    if not names:
        if as_json or every:
            _print_list(entries, as_json)
        else:
            _print_choice(entries)
        return
    hub = [read_address(name) for name in dict.fromkeys(names) if name.startswith(PREFIX)]
    listed_names = [name for name in dict.fromkeys(names) if not name.startswith(PREFIX)]
    for name in listed_names:
        if name not in entries:
            raise UsageError(f"no published checkpoint {name!r}", hint=suggest_names(name, entries))
    wanted = [entries[name] for name in listed_names]
    for entry in wanted:
        if not (target_of(entry).exists() or _downloaded(entry)):
            _check_download(entry, offline=offline, accept_licence=accept_licence)
    with StopHandler():
        for entry in wanted:
            print_path(_fetch(entry))
        for address in hub:
            print_path(_fetch_from_hub(address, offline=offline, accept_licence=accept_licence))


def _fetch_from_hub(address: HubAddress, *, offline: bool, accept_licence: bool) -> Path:
    """Return the weights of a file of the hub, downloaded and imported if need be."""
    target = cache_folder() / f"{address.name}{SUFFIX}"
    if target.exists():
        say(f"{address.name}: already downloaded")
        return target
    if offline:
        raise UsageError("--offline, but it is not downloaded", where=address.repository)
    found = find_hub_file(address)
    entry = found.entry
    if not accept_licence:
        _ask(entry)
    use = entry.licence_class or UNKNOWN
    licence = "none stated" if entry.licence == NO_LICENCE else entry.licence
    say(f"{entry.source}, revision {found.commit[:12]}, {entry.megabytes:.1f} MB")
    say(f"licence: {licence} (class: {use})")
    path, digest = fetch_hub_file(found)
    checked = "as the hub states" if entry.digest else "the hub states none"
    say(f"SHA-256: {digest} ({checked})")
    if path.suffix == SUFFIX and "card" in read_header(path).metadata:
        read_card(path)  # of a format that this version reads
        write_whole(target, (path.read_bytes(),))
        say(f"{address.name}: use it with -m {address.name}")
        return target
    about = {"licence": entry.licence, "trained_on": entry.source}
    about |= {"licence_class": entry.licence_class} if entry.licence_class else {}
    try:
        convert([path], address.name, about, target)
    except (ModelError, UsageError) as error:
        hint = f"costream models import {shlex.quote(str(path))} --config ..."
        raise ModelError(f"cannot be imported ({error})", where=entry.name, hint=hint) from error
    return target


def _check_download(entry: Published, *, offline: bool, accept_licence: bool) -> None:
    """Raise UsageError for a checkpoint that cannot or may not be downloaded now."""
    if entry.by_hand is not None:
        raise UsageError(f"{entry.name} must be downloaded manually", hint=_by_hand(entry))
    if offline:
        raise UsageError(f"--offline, but {entry.name} is not downloaded", where=entry.url)
    if not accept_licence:
        _ask(entry)


def target_of(entry: Published) -> Path:
    """Return the final file of a fetched entry: a model's weights, or a part as downloaded."""
    return download_of(entry) if entry.config is None else cache_folder() / f"{entry.name}{SUFFIX}"


def download_of(entry: Published) -> Path:
    """Return the file that an entry is downloaded to."""
    return downloads_folder() / entry.name / entry.file


def _downloaded(entry: Published) -> bool:
    return all(download_of(part).exists() for part in (entry, *entry.also))


def _fetch(entry: Published) -> Path:
    target, file = target_of(entry), download_of(entry)
    if target.exists():
        say(f"{entry.name}: already downloaded")
        return target
    files = [file, *(download_of(part) for part in entry.also)]
    for part, path in zip((entry, *entry.also), files, strict=True):
        if not path.exists():
            _download(part, path)
    if entry.config is None:
        say(f"{entry.name}: {entry.note}".rstrip(": "))
        return file
    about = {"licence": entry.licence, "trained_on": entry.source}
    about |= {"licence_class": entry.licence_class} if entry.licence_class else {}
    hint = f"the download is kept; costream models remove {entry.name} deletes it"
    try:
        convert(files, entry.name, {**about, **entry.config}, target)
    except (ModelError, UsageError) as error:
        what = f"cannot be imported ({error})"
        raise ModelError(what, where=entry.name, hint=hint) from error
    if entry.check:
        from costream.models.verify import check_known_sounds

        try:
            check_known_sounds(target, entry.check)
        except ModelError as error:
            target.unlink()
            raise ModelError(str(error), where=entry.name, hint=hint) from error
    shutil.rmtree(file.parent, ignore_errors=True)
    return target


def _download(entry: Published, file: Path) -> None:
    from costream.ui.progress import Transfer
    from costream.weights_io.download import download

    with _lock(file), Transfer(entry.name) as transfer:
        if file.exists():
            return  # another process was faster
        transfer.say(f"about {entry.megabytes:g} MB from {display_name(entry.url)}")
        try:
            most = round(2e6 * entry.megabytes + 10e6)  # bytes; those of an entry are about right
            download(entry.url, file, transfer, entry.algorithm, entry.digest, most=most)
        except Stopped:
            transfer.say("stopped; repeat the command to resume")
            raise


def _lock(file: Path) -> IO[str]:
    """Return a locked file; raise ModelError if another process is downloading."""
    path = file.with_name(f"{file.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = append_own(path)
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror})", where=path) from error
    if not try_lock(lock):
        lock.close()
        raise ModelError("is being downloaded by another process", where=file)
    return lock


def _ask(entry: Published) -> None:
    """Ask to accept the licence. Raise UsageError if it is refused, or there is no terminal."""
    has_licence = entry.licence != NO_LICENCE
    licence = f"its licence is {entry.licence}" if has_licence else "its authors state no licence"
    about = f"{entry.name} ({entry.source}): {licence}"
    if not _can_ask():
        raise UsageError(about, hint="accept it with --accept-licence")
    question = f"{about}. Fetch {entry.total_megabytes:g} MB and accept that?"
    if not _confirmed(message(question)):
        raise UsageError(f"the licence of {entry.name} was not accepted: nothing was fetched")


def _can_ask() -> bool:
    """Return whether there is a terminal; a standard stream that is closed is None."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _confirmed(question: str) -> bool:
    """Ask on standard error: ``click.confirm`` of some versions writes a space to the output."""
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _by_hand(entry: Published) -> str:
    pairs = "".join(f" --config {k}={v}" for k, v in (entry.config or {}).items())
    return (
        f"open {display_name(entry.url)} in a browser, save {entry.by_hand},"
        f" then: costream models import {entry.by_hand} --name {entry.name}{pairs}"
    )


def _print_choice(known: dict[str, Published]) -> None:
    """Print the models that can be fetched without a browser, by what they find."""
    shown = {n: e for n, e in known.items() if e.config is not None and not e.by_hand}
    groups: dict[str, list[Published]] = {}
    for entry in shown.values():
        groups.setdefault(kind_of(entry.task), []).append(entry)
    width = max(map(len, shown), default=0)
    for kind, entries in groups.items():
        click.echo(kind)
        for e in entries:
            size = "here" if target_of(e).exists() else f"{e.total_megabytes:g} MB"
            line = f"  {e.name:<{width}}  {size:>7}  {known_labels(e)}"
            click.echo(printable(line if len(line) <= 80 else f"{line[:76].rstrip()} ..."))
    say("fetch one: costream models fetch NAME")
    if len(known) > len(shown):
        say(f"{len(known) - len(shown)} more by hand or as parts: costream models fetch --all")


def known_labels(entry: Published) -> str:
    """Return the labels of a published checkpoint, in a few words."""
    names = published_labels(entry.config or {})
    return labels_text(names) if names else entry.source


def labels_text(names: Sequence[str]) -> str:
    """Return the number of labels and the first ones."""
    return f"{counted(len(names), 'label')}: {listed(names, 4)}"


def published_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an entry of ``models fetch --json``."""
    schema = schema_of(Published, (Published,))
    found = schema["$defs"]["Published"]
    path = {"type": ["string", "null"], "description": "of the fetched weights; null: not here"}
    found["properties"]["path"] = path
    return schema


def _print_list(known: dict[str, Published], as_json: bool) -> None:
    paths = {name: target_of(entry) for name, entry in known.items()}
    if as_json:
        existing = {name: str(path) for name, path in paths.items() if path.exists()}
        shown = {n: {**dataclasses.asdict(e), "url": display_name(e.url)} for n, e in known.items()}
        print_json([{**values, "path": existing.get(name)} for name, values in shown.items()])
        return
    rows = [("NAME", "MB", "LICENCE", "CLASS", "FETCHED", "DESCRIPTION")]
    for name, e in known.items():
        note = " (manual)" if e.by_hand else ""
        licence = "none stated" if e.licence == NO_LICENCE else e.licence
        use = e.licence_class or UNKNOWN
        here = "yes" if paths[name].exists() else "no"
        rows.append((name, f"{e.megabytes:g}", licence, use, here, f"{e.source}{note}"))
    print_table(rows)


# ``costream models path`` and ``remove``: print the paths of weights, and delete them.


@click.command("path", cls=Command, short_help="Print the file of the weights in use.")
@click.argument("name", shell_complete=model_names)
def path_command(name: str) -> None:
    """Print the file of the weights in use, or of a checkpoint that was fetched as a part."""
    part = published().get(name)
    if part is None or part.config is not None:
        print_path(find_weights(name))
        return
    if not download_of(part).exists():
        raise ModelError(f"{name} is not downloaded", hint=f"costream models fetch {name}")
    print_path(download_of(part))


@click.command("remove", cls=Command, short_help="Delete weights from the user cache.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def remove_command(names: tuple[str, ...], yes: bool) -> None:
    """Delete imported and fetched weights and unfinished downloads from the user cache."""
    paths = [path for name in dict.fromkeys(names) for path in _of(name)]
    if not yes:
        listed = "\n".join(map(str, paths))
        if not _can_ask():
            raise UsageError(f"{listed} would be deleted", hint="confirm with --yes")
        if not _confirmed(printable(f"{listed}\nDelete?")):
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
        say(f"deleted {path}")


def _of(name: str) -> list[Path]:
    """Return the files of a name in the cache. Raise UsageError or ModelError if there are none."""
    weights, downloads = cache_folder().glob(f"*{SUFFIX}"), downloads_folder().glob("*")
    paths = [path for path in weights if path.name == f"{name}{SUFFIX}"]
    paths += [path for path in downloads if path.name == name]
    if not paths:
        hint = "only what was fetched or imported can be removed"
        raise UsageError("is not in the user cache", where=find_weights(name), hint=hint)
    return paths


# ``costream models import``: convert foreign checkpoints to weight files.


def _keys() -> str:
    head = "Keys of --config (checked against the tensors where these determine the value):"
    lines = [f"{key:<20} {what} ({kind})" for key, (_, kind, what) in KEYS.items()]
    return "\b\n" + "\n".join([head, *lines])


@click.command(
    "import", cls=Command, short_help="Convert a checkpoint of another tool.", epilog=_keys()
)
@click.argument("checkpoints", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--as",
    "form",
    type=click.Choice(list(IMPORTERS)),
    help="Checkpoint format.  [default: detected]",
)
@click.option("--name", metavar="NAME", help="Name of the model.  [default: that of the file]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file, not to the cache.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting that the checkpoint does not contain. Repeatable.  [default: as published]",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Checkpoint for the network of FILE.py:FUNCTION.",
)
@click.option("--overwrite/--no-overwrite", default=False, help="Replace existing weights.")
def import_command(
    checkpoints: tuple[Path, ...],
    form: str | None,
    name: str | None,
    output: Path | None,
    pairs: tuple[str, ...],
    weights: Path | None,
    overwrite: bool,
) -> None:
    """Convert a checkpoint of another tool and print the written file.

    Without -o it is written to the user cache, where '-m NAME' finds it. No code in the
    checkpoint is executed: pickles may contain only arrays and plain containers. Settings that
    the checkpoint does not contain are the published ones, and are printed.

    Some models are made from several checkpoints:

    \b
    - skeletons: one per stream; --config stream=joint,bone names the streams in
      this order, unless the file names do
    - audio: the network, its VGGish, and the PCA file it was trained with
    - video: the network, and MMAction2's TSN checkpoints of RGB and flow; these
      two alone become a model for 'costream features'
    - ViViT: a second checkpoint with the temporal encoder for fewer tokens

    FILE.py:FUNCTION runs that file and makes the network that its function builds continual; see
    'costream help adding'.
    """
    config = read_pairs(pairs)
    ImportSettings(config, KEYS)  # reports a typo before torch is imported
    user_network = split_spec(str(checkpoints[0])) if len(checkpoints) == 1 else None
    if weights is not None and user_network is None:
        raise UsageError("is for the network of FILE.py:FUNCTION", where="--weights")
    for checkpoint in checkpoints if user_network is None else ():
        _check_file(checkpoint)
    if len(checkpoints) > 1 and not (name or output):
        raise UsageError("several checkpoints become one model: name it with --name")
    name = name or (output or (checkpoints[0] if user_network is None else user_network[0])).stem
    if not name or set(name) & set("/\\"):
        raise UsageError(f"--name {name!r}: not a file name")
    target = output or cache_folder() / f"{name}{SUFFIX}"
    check_weight_file(target)
    if target.exists() and not overwrite:
        raise UsageError("exists already", where=target, hint="use --name, -o or --overwrite")
    if user_network is None:
        convert(checkpoints, name, config, target, form)
    else:
        _convert_user_network(*user_network, weights, name, config, target)
    print_path(target)


def _convert_user_network(
    file: Path,
    function: str,
    weights: Path | None,
    name: str,
    config: Mapping[str, str],
    target: Path,
) -> None:
    """Write the weight file of a user's network. Raises as ``import_user_network``."""
    from costream.models.user_network import import_user_network
    from costream.weights_io.file import write_weights

    card, tensors, report = import_user_network(file, function, weights, name, config)
    write_weights(target, card, tensors)
    for line in report.splitlines():
        say(line)
    model = name if target == cache_folder() / f"{name}{SUFFIX}" else str(target)
    call = f"costream --code {shlex.quote(str(file))} ... -m {shlex.quote(model)}"
    say(f"{name}: {card.description} Run it with: {call}")


def convert(
    checkpoints: Sequence[Path],
    name: str,
    config: Mapping[str, str],
    target: Path,
    form: str | None = None,
) -> None:
    """Write the weight file of checkpoints and describe it. Raises as ``import_files``."""
    from costream.models.build import build
    from costream.models.importing import import_files
    from costream.runtime.logs import logging_to
    from costream.weights_io.file import write_weights

    with logging_to(1, "auto", None):
        card, tensors = import_files(checkpoints, name, config, form)
    build(card, tensors)  # checks that they fit before anything is written
    write_weights(target, card, tensors)
    use = f"Licence class: {licence_class(card)}."
    say(f"{name}: {card.description} {use} See: costream models show {target}")


def _check_file(checkpoint: Path) -> None:
    """Raise ModelError unless this is a file."""
    if checkpoint.is_file():
        return
    if not checkpoint.is_dir():
        raise ModelError("there is no such file", where=checkpoint)
    if (checkpoint / ".metadata").exists():
        convert = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
        hint = f"join its files: {convert} {shlex.quote(str(checkpoint))} OUT.pth"
        raise ModelError("a distributed checkpoint of PyTorch", where=checkpoint, hint=hint)
    hint = "name the checkpoint in it; of parts, the first one or the index (.json)"
    raise ModelError("this is a folder", where=checkpoint, hint=hint)
