"""The options of a run: one frozen dataclass, made by the command line and read everywhere.

Every field declares its own option. A new one is a field here and the line that reads it: the
commands, their help, configuration files and COSTREAM_* variables follow from the declaration.
"""

# ruff: noqa: RUF009 - flag() returns a field

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from costream.core.places import KINDS, Place, check_places
from costream.core.records import RawAudioFormat
from costream.core.settings import ColorMode
from costream.options.budget import Budget, BudgetFile, parse_budget
from costream.options.flags import (
    BATCH,
    EVERY,
    FILES,
    LISTEN,
    OFFLINE,
    READ,
    VIDEO,
    WATCH,
    flag,
    job_count,
    limit_flag,
    parse_places,
    parse_stream,
    positive,
    raw_format,
    step_rate,
    switch_flag,
    texts_flag,
    time_flag,
)
from costream.sinks.registry import FORMATS, parse_formats

if TYPE_CHECKING:
    from costream.weights_io.card import Card, Timeline


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

    # Text
    by: Literal["line", "word"] | None = flag(
        "--by",
        "A result for each line, or for each word.",
        cli_default="line",
        on=READ,
        type=click.Choice(["line", "word"]),
    )
    arrival: bool = switch_flag(
        "--arrival/--no-arrival",
        "Times are seconds since the first line came, not the numbers of lines.",
        on=READ,
    )

    # Live feeds
    transport: Literal["tcp", "udp"] = flag(
        "--rtsp-transport",
        "Transport of RTSP.",
        default="tcp",
        on=WATCH,
        type=click.Choice(["tcp", "udp"]),
    )
    tls_verify: bool = switch_flag(
        "--tls-verify/--no-tls-verify",
        "URLs: refuse a server whose certificate is not valid, as many cameras' are.",
        on=("detect", "listen", "batch", "watch"),
        identity=False,
    )
    timeout_s: float = limit_flag(
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
    realtime: bool = switch_flag(
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
    max_lag_s: float = limit_flag(
        "--max-lag", "Drop steps that wait longer.", default=2.0, on=WATCH
    )

    # Alerts of feeds; a list of feeds may have its own, so they are parsed with it
    on: tuple[str, ...] = texts_flag(
        "--on",
        "Alert rule: 'LABEL>=0.8 for 2s', 'gap>=10s', 'lost'. Repeatable.",
        on=(*READ, *WATCH),
        envvar=None,
        metavar="RULE",
    )
    run: tuple[str, ...] = texts_flag(
        "--run",
        "Run this command at an alert, without a shell.",
        on=(*READ, *WATCH),
        envvar=None,
        metavar="COMMAND",
    )
    post: tuple[str, ...] = texts_flag(
        "--post", "Post alerts to this URL as JSON.", on=(*READ, *WATCH), envvar=None, metavar="URL"
    )
    append: tuple[str, ...] = texts_flag(
        "--append",
        "Append alerts to this file as JSON lines.",
        on=(*READ, *WATCH),
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
    snapshots: str | None = flag(
        "--snapshots",
        "Save the picture of each alert in this folder, with boxes and places.",
        on=WATCH,
        type=click.Path(file_okay=False),
        metavar="FOLDER",
    )
    mqtt: str | None = flag(
        "--mqtt",
        "Publish states, alerts and snapshots to this broker, for Home Assistant too.",
        on=WATCH,
        metavar="mqtt[s]://HOST[:PORT][/PREFIX]",
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
    output: str | None = flag(  # "-" for stdout; None: a readable timeline there
        "-o --output",
        "Write files to this folder, or one table FILE.csv; '-' is stdout.",
        on=EVERY,
        identity=False,
        metavar="FOLDER|FILE.csv|-",
    )
    formats: tuple[str, ...] = texts_flag(
        "-f --format formats",
        f"Comma-separated, repeatable: {', '.join(FORMATS)}.  [default with -o: jsonl]",
        on=FILES,
        identity=False,
        parse=parse_formats,
        metavar="LIST",
    )

    # What is read
    start_s: float = time_flag("--start", "Start (seconds or HH:MM:SS).", default=0.0, on=OFFLINE)
    end_s: float | None = time_flag("--end", "End time.", on=OFFLINE)
    duration_s: float | None = time_flag(
        "--duration", "Length to process, instead of --end.", on=OFFLINE, identity=False
    )
    rate_hz: float | None = flag(
        "--fps",
        "Steps per second of the model. Skeletons without time stamps: their frame rate.",
        on=(*VIDEO, "features"),
        type=float,
        callback=step_rate,
    )
    input_hz: float | None = flag(
        "--input-fps",
        "Frames per second of inputs without time stamps: raw video, skeletons.",
        on=("detect", "batch"),
        type=float,
        callback=step_rate,
    )
    stream: str | None = flag(
        "--stream",
        "Of several video streams this one.  [default: that which players show, or the largest]",
        on=(*VIDEO, "features"),
        parse=parse_stream,
        metavar="N|WIDTHxHEIGHT",
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
        on=("detect", "listen", "batch", "watch"),
        type=click.IntRange(1),
        metavar="N",
    )
    levels: Literal["dB", "dBA"] | None = flag(
        "--levels",
        "Sound: write the level of each step, of dBA also A-weighted.",
        on=("listen", "watch"),
        type=click.Choice(["dB", "dBA"]),
    )
    full_scale_db: float = flag(
        "--full-scale",
        "Sound: level of the loudest sound that the microphone can tell, in dB.",
        default=0.0,
        on=("listen", "watch"),
        type=float,
        metavar="DB",
    )

    # Timeline and predictions
    threshold: float | None = flag(
        "--threshold",
        "Probability that opens a segment, for every label.",
        type=click.FloatRange(0, 1, min_open=True),
    )
    min_length_s: float | None = time_flag("--min-length", "Drop shorter segments (seconds).")
    min_gap_s: float | None = time_flag("--min-gap", "Merge closer segments of a label (seconds).")
    only: tuple[str, ...] = texts_flag(  # a variable would be split at the spaces of labels
        "--only", "Segments of these labels only: a,b*; repeatable.", envvar=None, metavar="LABEL"
    )
    top_k: int = flag("--top-k", "Labels in each prediction.", default=3, type=click.IntRange(1))
    scores: bool = switch_flag("--scores/--no-scores", "Write every class probability.")

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
    decoder: Literal["auto", "software", "hardware", "fast"] = flag(
        "--decoder",
        "Video: who decodes; auto: a device (NVDEC, VAAPI) if there is one; fast: no deblocking.",
        default="software",
        on=VIDEO,
        identity=False,
        type=click.Choice(["auto", "software", "hardware", "fast"]),
    )
    track: bool = switch_flag("--track/--no-track", "Objects: assign track ids.", on=VIDEO)
    zone: tuple[Place, ...] = texts_flag(
        "--zone",
        "Objects: a polygon to watch, in parts of the picture or pixels. Repeatable.",
        on=VIDEO,
        envvar=None,
        parse=partial(parse_places, "zone"),
        metavar="NAME='X,Y ...'",
    )
    line: tuple[Place, ...] = texts_flag(
        "--line",
        "Objects: a line whose crossings are counted. Repeatable.",
        on=VIDEO,
        envvar=None,
        parse=partial(parse_places, "line"),
        metavar="NAME='X,Y ...'",
    )
    mask: tuple[Place, ...] = texts_flag(
        "--mask",
        "Video: a polygon that the model does not see. Repeatable.",
        on=VIDEO,
        envvar=None,
        parse=partial(parse_places, "mask"),
        metavar="NAME='X,Y ...'",
    )
    wait: bool = switch_flag("--wait/--no-wait", "No output before the model's window is full.")
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
        "Threads of the network; one where more are slower.",
        default=1,
        on=EVERY,
        identity=False,
        type=click.IntRange(1),
    )

    # Existing files, and what is shown
    overwrite: bool = switch_flag(
        "--overwrite/--no-overwrite", "Replace existing results.", on=OFFLINE, identity=False
    )
    skip_existing: bool = switch_flag(
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
    quiet: bool = switch_flag(
        "-q --quiet", "Only errors on stderr.", on=EVERY, identity=False, is_flag=True
    )
    raw: RawAudioFormat | None = flag(
        "--raw",
        "Format of samples without a header: s16le:48000:2.",
        on=LISTEN,
        callback=raw_format,
        metavar="FORMAT:RATE[:CHANNELS]",
    )

    # Batches
    include: tuple[str, ...] = texts_flag(
        "--include", "Process only matching inputs; repeatable.", on=BATCH, metavar="GLOB"
    )
    exclude: tuple[str, ...] = texts_flag(
        "--exclude", "Skip matching inputs; repeatable.", on=BATCH, metavar="GLOB"
    )
    jobs: int | None = flag(  # None: as many as cores and memory allow
        "--jobs",
        "Worker processes, one thread each; auto: as many as cores and memory allow.",
        cli_default="auto",
        on=BATCH,
        callback=job_count,
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
    file_timeout_s: float | None = limit_flag(
        "--timeout-per-file", "Abort a file that takes longer.", on=BATCH
    )
    fail_fast: bool = switch_flag(
        "--fail-fast/--no-fail-fast", "Stop at the first failure.", on=BATCH
    )
    limit: int | None = flag(
        "--limit", "Process only the first N inputs.", on=BATCH, type=click.IntRange(1), metavar="N"
    )
    dry_run: bool = switch_flag("--dry-run", "Print what would be done.", on=BATCH, is_flag=True)
    hash: bool = switch_flag(
        "--hash/--no-hash", "Identify inputs by content, not by size and time.", on=BATCH
    )
    timings: bool = switch_flag(
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
    def places(self) -> tuple[Place, ...]:
        """Zones, lines and masks. UsageError when two have one name."""
        return check_places((*self.zone, *self.line, *self.mask), "--zone, --line, --mask")

    def with_places(self, places: Iterable[Place]) -> Options:
        """Return these options with other zones, lines and masks."""
        by = {kind: tuple(place for place in places if place.kind == kind) for kind in KINDS}
        return replace(self, zone=by["zone"], line=by["line"], mask=by["mask"])

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that a run's header has in addition to the range and the timeline."""
        values: dict[str, Any] = {"dtype": self.dtype, "channel": self.channel}
        values |= {"input_fps": self.input_hz, "stream": self.stream}
        values |= {"tokens": self.tokens, "budget": self.budget and self.budget.text}
        values |= {"track": self.track or None, "places": self.places or None}
        values["decoder"] = "fast" if self.decoder == "fast" else None  # the others: same pixels
        return {name: value for name, value in values.items() if value is not None}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that change the results for one input, by which a batch is known again."""
        values: dict[str, Any] = {}
        for each in fields(self):
            declared = each.metadata.get("flag")
            if declared and declared.identity and {"detect", "listen"} & {*declared.commands}:
                values[each.name] = getattr(self, each.name)
        values |= {name: self.recorded.get(name) for name in ("budget", "decoder")}
        later = {"only", "input_hz", "stream", "zone", "line", "mask", "levels", "full_scale_db"}
        later |= {"decoder"}
        return {k: v for k, v in values.items() if v or k not in later}  # known batches stay known

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
