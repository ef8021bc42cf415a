"""``costream batch``: every file below a folder, resumable."""

from __future__ import annotations

from typing import Any

import click

from costream.cli import detect
from costream.cli.options import config_option, option, seconds
from costream.errors import UsageError
from costream.settings import BatchSettings

# Options of detect that mean something else here, or nothing.
_NOT_SHARED = {"sources", "output", "overwrite", "skip_existing", "config"}


def _shared() -> list[click.Parameter]:
    """Give the options that say what is done with each input: those of detect."""
    return [p for p in detect.command.params if p.name not in _NOT_SHARED]


def _whole_number(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither auto nor a number from 1 on", ctx, param)
    return int(value)


def _limit(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    limit_s = seconds(ctx, param, value)
    if limit_s == 0:
        raise click.BadParameter("no file takes no time", ctx, param)
    return limit_s


@click.command(no_args_is_help=True)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@option("-o", "--output", required=True, metavar="FOLDER", help="Write results there.")
@option("--include", multiple=True, metavar="GLOB", help="Only these; repeatable.")
@option("--exclude", multiple=True, metavar="GLOB", help="Not these; repeatable.")
@option(
    "--jobs",
    default="auto",
    metavar="N|auto",
    callback=_whole_number,
    help="Worker processes, one thread each; auto: as many as cores and memory allow.",
)
@option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Who runs them.")
@option("--ray-address", metavar="HOST:PORT", help="Of a running Ray cluster; else a local one.")
@option(
    "--timeout-per-file",
    type=str,
    callback=_limit,
    metavar="TIME",
    help="Give up a file that takes longer.",
)
@option("--fail-fast/--no-fail-fast", default=False, help="Stop at the first failure.")
@option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N inputs.")
@option("--dry-run", is_flag=True, default=False, help="Say what would be done.")
@option("--hash/--no-hash", default=False, help="Tell inputs by content, not by size and time.")
@option("--timings/--no-timings", default=False, help="Clock times in the results.")
@option(
    "--predictions",
    type=click.Choice(["csv", "parquet", "none"]),
    default="csv",
    help="The table of all predictions.",
)
@option("--overwrite/--no-overwrite", default=False, help="Do everything again.")
@option("--skip-existing/--no-skip-existing", default=True, help="Keep complete results.")
@config_option()
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Run a model over many files; repeated, it goes on where it was stopped.

    INPUT is a file, a folder (searched with all folders below it), the URL of either in a store
    that fsspec opens (s3://, gs://, http://, zip://, ...), @LIST (a file of paths and URLs, one a
    line) or '-' (such a list on stdin). Files that are no media, or not for this model, are
    skipped. Results mirror the folders below FOLDER, with tables over all inputs beside them:
    predictions.csv, timeline.csv, compute.csv, failures.csv and summary.json. FOLDER is one of
    this machine or a mounted one, no URL.

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
    """Check what the options say together, before anything is loaded."""
    from costream.runtime.batch.stores import is_url, local_path

    if values["output"] == "-":
        raise UsageError("results go to a folder", where="-o -")
    output = local_path(values["output"])
    if is_url(output):
        raise UsageError(
            "results go to a folder of this machine or a mounted one",
            where=f"-o {output}",
            hint="mount the store, or copy the folder there afterwards",
        )
    if values["ray_address"] and values["engine"] != "ray":
        raise UsageError("--ray-address goes with --engine ray")
    told = {**values, "sources": (), "overwrite": False, "skip_existing": False}
    common = detect.settings_of(told)
    if common.budget is not None and not _repeats(common.budget):
        hint = "give it in operations (2GMAC), or use: costream detect"
        raise UsageError("gives other results each time", where="--budget", hint=hint)
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
    """Tell whether a budget does the same on any machine."""
    from costream.runtime.budget import Budget

    return not budget.startswith("@") and Budget.parse(budget).kind == "macs"
