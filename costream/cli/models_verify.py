"""``costream models verify``: check that weight files work as their cards state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from costream.cli.click_command import Command
from costream.cli.printing import print_json
from costream.core.errors import CostreamError, ExitCode, printable, say
from costream.models.catalogue import (
    find_weights,
    list_models,
    read_model,
    split_name,
)
from costream.options.click_options import json_option
from costream.options.completers import model_names
from costream.weights_io.file import read_card
from costream.weights_io.store import published


@dataclass(frozen=True)
class Verification:
    """A model of ``models verify --json``."""

    path: str
    ok: bool
    sha256: str  # of the tensors; empty if the check failed
    sample: dict[str, Any] | None  # the score on a shipped sample; null: the card states none
    known_input: str | None  # result of the published checkpoint's check; null: other files
    problem: str | None


@click.command(
    "verify", cls=Command, short_help="Check that weight files work as their cards state."
)
@click.argument("models", nargs=-1, metavar="[NAME|FILE]...", shell_complete=model_names)
@json_option
def verify_command(models: tuple[str, ...], as_json: bool) -> int:
    """Check weight files: checksum, card, tensors, a few steps, and the score on a sample.

    Without a name, check all of them. If the card states a score on a sample that is shipped with
    costream, it is measured again. Exit code 5 if one fails.
    """
    from costream.evaluation.sample import reproduce
    from costream.models.verify import verify
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch()
    rows = []
    for name in models or [e.name for e in list_models() if e.path is not None]:
        path, sample, known, problem = None, None, None, None
        try:
            file = find_weights(name)
            path = name if split_name(name)[1] else str(file)
            digest = verify(path, read_model(path))
            sample = reproduce(path)
            known = _check_published(file)
        except CostreamError as error:
            digest, problem = "", str(error)
        rows.append(Verification(path or name, problem is None, digest, sample, known, problem))
    if not rows:
        say("there are no weight files to verify")
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        for row in rows:
            click.echo(printable(_line(row)))
    failed = any(not row.ok for row in rows)
    return int(ExitCode.MODEL if failed else ExitCode.OK)


def _check_published(path: Path) -> str | None:
    """Run the check of the published checkpoint that a file was fetched from.

    Return its result in words; None for other files. Raises ModelError if it fails.
    """
    from costream.models.verify import check_known_sounds

    card = read_card(path)
    entry = published().get(card.name)
    if entry is None or entry.source != card.trained_on:
        return None
    if not entry.check:
        return "unchecked: its authors give no result for a known input"
    check_known_sounds(path, entry.check)
    return f"as published: {', '.join(entry.check)}"


def _line(row: Verification) -> str:
    if not row.ok:
        return f"FAIL  {row.problem}"
    sample = row.sample
    if sample is None:
        return f"ok    {row.path}" + (f"  {row.known_input}" if row.known_input else "")
    if sample["metrics"] is None:
        return f"ok    {row.path}  sample not checked: {sample['reason']}"
    scores = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in sample["metrics"].items())
    return f"ok    {row.path}  {sample['file']}: {scores}"
