"""``costream models verify``: check that weight files work as their cards state."""

from __future__ import annotations

from typing import Any

import click

from costream.cli.models.text import print_json
from costream.errors import CostreamError, ExitCode
from costream.models.registry import find_weights, list_models


@click.command("verify")
@click.argument("models", nargs=-1, metavar="[NAME|FILE]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify_command(models: tuple[str, ...], as_json: bool) -> int:
    """Check weight files: checksum, card, tensors, a few steps, and the score on a sample.

    Without a name, check all of them. If the card states a score on a sample, and the sample is
    available (in a clone, not in an installed package), it is measured again. Exit code 5 if one
    fails.
    """
    from costream.evaluation.sample import reproduce
    from costream.models.verify import verify
    from costream.runtime.machine import prepare_torch

    prepare_torch()
    rows = []
    for name in models or [e.name for e in list_models() if e.path is not None]:
        path, sample, problem = None, None, None
        try:
            path = find_weights(name)
            digest = verify(path)
            sample = reproduce(path)
        except CostreamError as error:
            digest, problem = "", str(error)
        rows.append(
            {
                "path": name if path is None else str(path),
                "ok": problem is None,
                "sha256": digest,
                "sample": sample,
                "problem": problem,
            }
        )
    if not rows:
        click.echo("there are no weight files to verify", err=True)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(_line(row))
    failed = any(not row["ok"] for row in rows)
    return int(ExitCode.MODEL if failed else ExitCode.OK)


def _line(row: dict[str, Any]) -> str:
    if not row["ok"]:
        return f"FAIL  {row['problem']}"
    sample = row["sample"]
    if sample is None:
        return f"ok    {row['path']}"
    if sample["metrics"] is None:
        return f"ok    {row['path']}  sample not checked: {sample['reason']}"
    scores = ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in sample["metrics"].items())
    return f"ok    {row['path']}  {sample['file']}: {scores}"
