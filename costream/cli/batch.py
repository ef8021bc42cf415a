"""``costream batch``: process all files below a folder, resumable."""

from __future__ import annotations

from typing import Any

import click

from costream.cli import detect
from costream.cli.options import config_option, option, seconds
from costream.errors import UsageError
from costream.settings import BatchSettings

# Options of detect that have another meaning here, or none.
_NOT_SHARED = {"sources", "output", "overwrite", "skip_existing", "config"}


def _shared() -> list[click.Parameter]:
    """Return the options for the processing of each input: those of detect."""
    return [p for p in detect.command.params if p.name not in _NOT_SHARED]


def _whole_number(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither auto nor a positive integer", ctx, param)
    return int(value)


def _limit(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    limit_s = seconds(ctx, param, value)
    if limit_s == 0:
        raise click.BadParameter("must be greater than 0", ctx, param)
    return limit_s


@click.command(no_args_is_help=True)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@option("-o", "--output", required=True, metavar="FOLDER", help="Write results to this folder.")
@option(
    "--include", multiple=True, metavar="GLOB", help="Process only matching inputs; repeatable."
)
@option("--exclude", multiple=True, metavar="GLOB", help="Skip matching inputs; repeatable.")
@option(
    "--jobs",
    default="auto",
    metavar="N|auto",
    callback=_whole_number,
    help="Worker processes, one thread each; auto: as many as cores and memory allow.",
)
@option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Worker backend.")
@option("--ray-address", metavar="HOST:PORT", help="Address of a Ray cluster; else a local one.")
@option(
    "--timeout-per-file",
    type=str,
    callback=_limit,
    metavar="TIME",
    help="Abort a file that takes longer.",
)
@option("--fail-fast/--no-fail-fast", default=False, help="Stop at the first failure.")
@option("--limit", type=click.IntRange(1), metavar="N", help="Process only the first N inputs.")
@option("--dry-run", is_flag=True, default=False, help="Print what would be done.")
@option("--hash/--no-hash", default=False, help="Identify inputs by content, not by size and time.")
@option("--timings/--no-timings", default=False, help="Write wall-clock times into the results.")
@option(
    "--predictions",
    type=click.Choice(["csv", "parquet", "none"]),
    default="csv",
    help="Format of the table of all predictions.",
)
@option("--overwrite/--no-overwrite", default=False, help="Process everything again.")
@option("--skip-existing/--no-skip-existing", default=True, help="Keep complete results.")
@config_option()
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Run a model over many files; repeat the command to resume.

    INPUT is a file, a folder (searched recursively), the URL of either in a store supported by
    fsspec (s3://, gs://, http://, zip://, ...), @LIST (a file of paths and URLs, one per line) or
    '-' (such a list on stdin). Files that are not media, or not suitable for this model, are
    skipped. Results in FOLDER mirror the folders of the inputs, with tables over all inputs
    beside them: predictions.csv, timeline.csv, compute.csv, failures.csv and summary.json. FOLDER
    is a local or mounted folder, not a URL.

    \b
    costream batch recordings/ -o out
    costream batch recordings/ -o out -m cooadtr -f json,csv --jobs 2 --exclude 'raw/*'
    costream batch s3://bucket/recordings -o out --engine ray --ray-address FIRST:6379
    find /data -name '*.mp4' -newer last | costream batch - -o out
    """
    from costream.runtime.batch.command import batch

    return int(batch(_settings(values), detect.effective(ctx)))


command.params[1:1] = _shared()


def _settings(values: dict[str, Any]) -> BatchSettings:
    """Check the combination of options, before anything is loaded."""
    from costream.runtime.batch.stores import is_url, local_path

    if values["output"] == "-":
        raise UsageError("must be a folder, not stdout", where="-o -")
    output = local_path(values["output"])
    if is_url(output):
        raise UsageError(
            "must be a local or mounted folder, not a URL",
            where=f"-o {output}",
            hint="mount the store, or copy the folder there afterwards",
        )
    if values["ray_address"] and values["engine"] != "ray":
        raise UsageError("--ray-address needs --engine ray")
    told = {**values, "sources": (), "overwrite": False, "skip_existing": False}
    common = detect.settings_of(told)
    if common.budget is not None and not _repeats(common.budget):
        hint = "give it in operations (2GMAC), or use: costream detect"
        raise UsageError("is not reproducible", where="--budget", hint=hint)
    return BatchSettings(
        detect=common,
        arguments=tuple(values["inputs"]),
        output=output,
        include=tuple(values["include"]),
        exclude=tuple(values["exclude"]),
        jobs=values["jobs"],
        engine=values["engine"],
        ray_address=values["ray_address"],
        timeout_s=values["timeout_per_file"],
        fail_fast=values["fail_fast"],
        limit=values["limit"],
        dry_run=values["dry_run"],
        hash=values["hash"],
        timings=values["timings"],
        predictions=values["predictions"],
        overwrite=values["overwrite"],
        skip_existing=values["skip_existing"],
    )


def _repeats(budget: str) -> bool:
    """Return whether a budget gives the same results on any machine."""
    from costream.runtime.budget.budget import Budget

    return not budget.startswith("@") and Budget.parse(budget).kind == "macs"
