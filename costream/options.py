"""The options of a run: one frozen dataclass, made by the command line and read everywhere.

Every field declares its own option. A new one is a field here and the line that reads it: the
commands, their help, configuration files and COSTREAM_* variables follow from the declaration.
"""

# ruff: noqa: RUF009 - flag() returns a field

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import click

from costream.budget import Budget, BudgetFile, parse_budget
from costream.clock import parse_time
from costream.errors import UsageError
from costream.records import RawAudioFormat
from costream.settings import ColorMode
from costream.sinks.registry import FORMATS, parse_formats

if TYPE_CHECKING:
    from costream.checkpoints.card import Card, Timeline

# The commands that have an option.
LISTEN, WATCH, BATCH = ("listen",), ("watch",), ("batch",)
FILES = ("detect", "listen", "batch")
RUNS = (*FILES, "watch")
VIDEO = ("detect", "batch", "watch")
EVERY = (*RUNS, "features")
OFFLINE = (*FILES, "features")

_RAW = re.compile(r"([a-z][a-z0-9]+):([0-9]+)(?::([0-9]+))?")


def seconds(ctx: click.Context, param: click.Parameter, value: Any) -> float | None:
    """Parse ``62``, ``5s``, ``1h30m``, ``1:02`` or ``HH:MM:SS.mmm`` as seconds."""
    if value is None:
        return None
    try:
        return parse_time(str(value))
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Raise BadParameter for zero, negative and non-finite numbers."""
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a positive number", ctx, param)
    return value


def _positive_seconds(ctx: click.Context, param: click.Parameter, value: Any) -> float | None:
    limit_s = seconds(ctx, param, value)
    if limit_s == 0:
        raise click.BadParameter("must be greater than 0", ctx, param)
    return limit_s


def _raw(ctx: click.Context, param: click.Parameter, value: str | None) -> RawAudioFormat | None:
    """Parse FORMAT:RATE[:CHANNELS]."""
    if value is None:
        return None
    match = _RAW.fullmatch(value)
    if match is None or not int(match[2]) or match[3] == "0":
        raise click.BadParameter(f"{value!r} is not FORMAT:RATE[:CHANNELS]", ctx, param)
    return RawAudioFormat(match[1], int(match[2]), int(match[3] or 1))


def _jobs(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither auto nor a positive integer", ctx, param)
    return int(value)


@dataclass(frozen=True)
class Flag:
    """The declaration of a field's option."""

    names: tuple[str, ...]  # as for click.Option
    commands: tuple[str, ...]  # that have it
    identity: bool  # changes results, see Options.identity
    parse: Callable[[Any], Any] | None  # of the value that click read; raises UsageError
    click: dict[str, Any]  # further arguments of click.Option


def flag(
    names: str,
    help: str | None = None,
    *,
    default: Any = None,
    cli_default: Any = None,
    on: tuple[str, ...] = RUNS,
    identity: bool = True,
    parse: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> Any:
    """Return a field with the declaration of its option, for the commands ``on``.

    ``cli_default``: the default of the command line, where it differs from the field's.
    """
    shown = default if cli_default is None else cli_default
    if shown not in (None, ()):
        arguments["default"] = shown
    declaration = Flag(tuple(names.split()), on, identity, parse, {**arguments, "help": help})
    return field(default=default, metadata={"flag": declaration})


def _time(names: str, help: str, *, default: float | None = None, **arguments: Any) -> Any:
    """Return a field in seconds."""
    shown = None if default is None else f"{default:g}"
    time: dict[str, Any] = {"type": str, "callback": seconds, "metavar": "TIME"}
    return flag(names, help, default=default, cli_default=shown, **{**time, **arguments})


def _texts(names: str, help: str, **arguments: Any) -> Any:
    """Return a field whose option may be repeated."""
    return flag(names, help, default=(), multiple=True, **arguments)


def _switch(names: str, help: str, **arguments: Any) -> Any:
    """Return a field that is off by default."""
    return flag(names, help, default=False, **arguments)


@dataclass(frozen=True)
class Options:
    """The options of a run; None: the model card, or the source, decides.

    A command leaves the fields that it does not have at their defaults. ``--mic`` becomes a
    source, and ``--duration`` the end.
    """

    sources: tuple[str, ...] = ()  # files, folders, URLs, cameras, lists: the arguments
    mic: str | None = flag(
        "--mic",
        "Use the default microphone, or this one; 'costream doctor' lists them.",
        on=LISTEN,
        identity=False,
        envvar=None,
        is_flag=False,
        flag_value="",
        metavar="[NAME|INDEX]",
    )
    model: str = flag(
        "-m --model",
        "See 'costream models list'.",
        default="cooadtr",
        on=EVERY,
        metavar="NAME|FILE",
    )
    weights: str | None = flag(  # $COSTREAM_WEIGHTS is where models are looked for
        "--weights",
        "Weight file, or a folder that holds NAME.safetensors.",
        on=EVERY,
        identity=False,
        envvar=None,
        metavar="PATH",
    )

    # Live feeds
    transport: Literal["tcp", "udp"] = flag(
        "--rtsp-transport",
        "Transport of RTSP.",
        default="tcp",
        on=WATCH,
        type=click.Choice(["tcp", "udp"]),
    )
    timeout_s: float = _time(
        "--timeout",
        "A feed without data for this long is lost and reconnected.",
        default=10.0,
        on=WATCH,
    )
    retries: int = flag(
        "--reconnect",
        "Attempts in a row before a feed is given up; -1: unlimited.",
        default=-1,
        on=WATCH,
        type=click.IntRange(-1),
        metavar="N",
    )
    password_file: str | None = flag(
        "--password-file",
        "Password for URLs with a user name but no password.",
        on=WATCH,
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )
    realtime: bool = _switch(
        "--realtime/--no-realtime", "Accept files as feeds, played in real time.", on=WATCH
    )
    speed: float = flag(
        "--speed", "Playback speed of files.", default=1.0, on=WATCH, type=float, callback=positive
    )
    on_late: Literal["drop", "block"] = flag(
        "--on-late",
        "If steps arrive too fast: drop the oldest, or block the feed.",
        default="drop",
        on=WATCH,
        type=click.Choice(["drop", "block"]),
    )
    max_lag_s: float = _time("--max-lag", "Drop steps that wait longer.", default=2.0, on=WATCH)

    # Alerts of feeds; a list of feeds may have its own, so they are parsed with it
    on: tuple[str, ...] = _texts(
        "--on",
        "Alert rule: 'LABEL>=0.8 for 2s', 'gap>=10s', 'lost'. Repeatable.",
        on=WATCH,
        envvar=None,
        metavar="RULE",
    )
    run: tuple[str, ...] = _texts(
        "--run",
        "Run this command at an alert, without a shell.",
        on=WATCH,
        envvar=None,
        metavar="COMMAND",
    )
    post: tuple[str, ...] = _texts(
        "--post", "Post alerts to this URL as JSON.", on=WATCH, envvar=None, metavar="URL"
    )
    append: tuple[str, ...] = _texts(
        "--append",
        "Append alerts to this file as JSON lines.",
        on=WATCH,
        envvar=None,
        metavar="FILE",
    )
    clips: str | None = flag(
        "--clips",
        "Save the seconds around an alert as video.  [5,5]",
        on=WATCH,
        envvar=None,
        is_flag=False,
        flag_value="5,5",
        metavar="[BEFORE,AFTER]",
    )

    # Files of a watch
    rotate: str | None = flag(
        "--rotate",
        "Start a new file every period, or at this size.",
        on=WATCH,
        metavar="hour|day|SIZE",
    )
    keep: str | None = flag(
        "--keep",
        "Delete the oldest parts and clips of a feed beyond this total size, age (7d) or both.",
        on=WATCH,
        metavar="SIZE,AGE",
    )
    state_dir: str | None = flag(
        "--state-dir",
        "Save the state of the network there, so that a restart continues from it.",
        on=WATCH,
        type=click.Path(file_okay=False),
        metavar="FOLDER",
    )
    status_file: str | None = flag(
        "--status-file",
        "Write the status to this file as JSON.",
        on=WATCH,
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )
    metrics: str | None = flag(
        "--metrics", "Prometheus: http://127.0.0.1:PORT/metrics.", on=WATCH, metavar="[HOST:]PORT"
    )

    # Results
    output: str | None = flag(  # "-" for stdout; None: a timeline on a terminal, else JSONL
        "-o --output",
        "Write files to this folder, or one table FILE.csv; '-' is stdout.",
        on=EVERY,
        identity=False,
        metavar="FOLDER|FILE.csv|-",
    )
    formats: tuple[str, ...] = _texts(
        "-f --format formats",
        f"Comma-separated, repeatable: {', '.join(FORMATS)}.  [default with -o: jsonl]",
        on=FILES,
        identity=False,
        parse=parse_formats,
        metavar="LIST",
    )

    # What is read
    start_s: float = _time("--start", "Start time (seconds or HH:MM:SS).", default=0.0, on=OFFLINE)
    end_s: float | None = _time("--end", "End time.", on=OFFLINE)
    duration_s: float | None = _time(
        "--duration", "Length to process, instead of --end.", on=OFFLINE, identity=False
    )
    rate_hz: float | None = flag(
        "--fps",
        "Steps per second of the model. Skeletons without time stamps: their frame rate.",
        on=(*VIDEO, "features"),
        type=float,
        callback=positive,
    )
    layout: str | None = flag(
        "--layout",
        "Skeletons: joint layout (ntu-25, body-25, ...), if the file does not define it.",
        on=("detect", "batch"),
        metavar="NAME|FILE.toml",
    )
    columns: str | None = flag(
        "--columns",
        "Skeleton tables: the columns in order (frame,x,y,z), or by heading (x={}_px,y={}_py).",
        on=("detect", "batch"),
        metavar="LIST",
    )
    channel: int | None = flag(
        "--channel",
        "Audio models: use only this channel.  [default: the mean of all]",
        type=click.IntRange(1),
        metavar="N",
    )

    # Timeline and predictions
    threshold: float | None = flag(
        "--threshold",
        "Probability that opens a segment, for every label.",
        type=click.FloatRange(0, 1, min_open=True),
    )
    min_length_s: float | None = _time("--min-length", "Drop shorter segments (seconds).")
    min_gap_s: float | None = _time(
        "--min-gap", "Merge segments of a label closer than this (seconds)."
    )
    only: tuple[str, ...] = _texts(  # a variable would be split at the spaces of labels
        "--only", "Segments of these labels only: a,b*; repeatable.", envvar=None, metavar="LABEL"
    )
    top_k: int = flag("--top-k", "Labels in each prediction.", default=3, type=click.IntRange(1))
    scores: bool = _switch("--scores/--no-scores", "Write every class probability.")

    # The network
    tokens: int | None = flag(
        "--tokens",
        "Models eventful-*: maximum number of tokens computed per frame.  [default: all]",
        on=VIDEO,
        type=click.IntRange(1),
        metavar="N",
    )
    budget: Budget | BudgetFile | None = flag(
        "--budget",
        "Models eventful-*: maximum cost of a step; FILE may be changed during the run.",
        on=VIDEO,
        parse=parse_budget,
        metavar="40ms|20GMAC|0.5x|@FILE",
    )
    track: bool = _switch("--track/--no-track", "Objects: assign track ids.", on=VIDEO)
    wait: bool = _switch("--wait/--no-wait", "No output before the model's window is full.")
    device: str = flag(
        "--device", "Where the model runs.", default="auto", on=EVERY, metavar="auto|cpu|cuda:N|mps"
    )
    dtype: str | None = flag(  # None: as the model was loaded
        "--dtype",
        cli_default="float32",
        on=EVERY,
        type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
    )
    threads: int = flag(
        "--threads",
        "Threads of the network.",
        default=1,
        on=EVERY,
        identity=False,
        type=click.IntRange(1),
    )

    # Existing files, and what is shown
    overwrite: bool = _switch(
        "--overwrite/--no-overwrite", "Replace existing results.", on=OFFLINE, identity=False
    )
    skip_existing: bool = _switch(
        "--skip-existing/--no-skip-existing", "Keep complete results.", on=FILES, identity=False
    )
    live: bool = flag(
        "--live/--no-live", "Live view, if stderr is a terminal.", default=True, identity=False
    )
    color: ColorMode = flag(
        "--color", default="auto", identity=False, type=click.Choice(["auto", "always", "never"])
    )
    log_file: str | None = flag(
        "--log-file", "Also log warnings and settings to this file.", identity=False, metavar="FILE"
    )
    verbose: int = flag(
        "-v --verbose",
        "More messages; -vv: tracebacks.",
        default=0,
        on=EVERY,
        identity=False,
        count=True,
    )
    quiet: bool = _switch(
        "-q --quiet", "Only errors on stderr.", on=EVERY, identity=False, is_flag=True
    )
    raw: RawAudioFormat | None = flag(
        "--raw",
        "Format of raw samples on stdin and pipes: s16le:48000:2.",
        on=LISTEN,
        callback=_raw,
        metavar="FORMAT:RATE[:CHANNELS]",
    )

    # Batches
    include: tuple[str, ...] = _texts(
        "--include", "Process only matching inputs; repeatable.", on=BATCH, metavar="GLOB"
    )
    exclude: tuple[str, ...] = _texts(
        "--exclude", "Skip matching inputs; repeatable.", on=BATCH, metavar="GLOB"
    )
    jobs: int | None = flag(  # None: as many as cores and memory allow
        "--jobs",
        "Worker processes, one thread each; auto: as many as cores and memory allow.",
        cli_default="auto",
        on=BATCH,
        callback=_jobs,
        metavar="N|auto",
    )
    engine: Literal["local", "ray"] = flag(
        "--engine",
        "Worker backend.",
        default="local",
        on=BATCH,
        type=click.Choice(["local", "ray"]),
    )
    ray_address: str | None = flag(
        "--ray-address",
        "Address of a Ray cluster; else a local one.",
        on=BATCH,
        metavar="HOST:PORT",
    )
    file_timeout_s: float | None = _time(
        "--timeout-per-file",
        "Abort a file that takes longer.",
        on=BATCH,
        callback=_positive_seconds,
    )
    fail_fast: bool = _switch("--fail-fast/--no-fail-fast", "Stop at the first failure.", on=BATCH)
    limit: int | None = flag(
        "--limit", "Process only the first N inputs.", on=BATCH, type=click.IntRange(1), metavar="N"
    )
    dry_run: bool = _switch("--dry-run", "Print what would be done.", on=BATCH, is_flag=True)
    hash: bool = _switch(
        "--hash/--no-hash", "Identify inputs by content, not by size and time.", on=BATCH
    )
    timings: bool = _switch(
        "--timings/--no-timings", "Write wall-clock times into the results.", on=BATCH
    )
    predictions: Literal["csv", "parquet", "none"] = flag(
        "--predictions",
        "Format of the table of all predictions.",
        default="csv",
        on=BATCH,
        type=click.Choice(["csv", "parquet", "none"]),
    )

    @property
    def verbosity(self) -> int:
        """-1: errors only; 0: warnings too; 1: settings too; 2: everything."""
        return -1 if self.quiet else self.verbose

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that a run's header has in addition to the range and the timeline."""
        values: dict[str, Any] = {"dtype": self.dtype, "channel": self.channel}
        values |= {"tokens": self.tokens, "budget": self.budget and self.budget.text}
        values |= {"track": self.track or None}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that change the results for one input, by which a batch is known again."""
        values: dict[str, Any] = {}
        for each in fields(self):
            declared = each.metadata.get("flag")
            if declared and declared.identity and {"detect", "listen"} & {*declared.commands}:
                values[each.name] = getattr(self, each.name)
        values |= {"budget": self.budget and self.budget.text}
        return values if self.only else {k: v for k, v in values.items() if k != "only"}

    def timeline(self, card: Card) -> Timeline:
        """Return the card's timeline with this run's overrides."""
        timeline = card.timeline
        if self.threshold is not None:
            # The card's lower bound belongs to the card's threshold.
            timeline = replace(timeline, threshold=self.threshold, low=None, thresholds={})
        if self.min_length_s is not None:
            timeline = replace(timeline, min_length_s=self.min_length_s)
        if self.min_gap_s is not None:
            timeline = replace(timeline, min_gap_s=self.min_gap_s)
        return timeline
