"""The groups of options: each field declares its flag, each group is a heading of ``--help``.

A new option is a field here and the line that reads it: the commands, their help, configuration
files, COSTREAM_* variables and the Python API follow from the declaration.
"""

# ruff: noqa: RUF009 - flag() returns a field

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from costream.core.places import Place
from costream.core.records import RawAudioFormat
from costream.core.settings import AUTO, ColorMode
from costream.options.budget import Budget, BudgetFile, parse_budget
from costream.options.flags import (
    BATCH,
    EVERY,
    FILES,
    LISTEN,
    OFFLINE,
    READ,
    RUNS,
    VIDEO,
    WATCH,
    Group,
    flag,
    limit_flag,
    switch_flag,
    texts_flag,
    time_flag,
)
from costream.options.values import (
    job_count,
    parse_places,
    parse_stream,
    positive,
    probability,
    raw_format,
    step_rate,
    token_limit,
)
from costream.sinks.registry import FORMATS, parse_formats
from costream.weights_io.licences import AllowedLicence


@dataclass(frozen=True)
class ModelFlags(Group):
    """The network, its cost, and where it is computed."""

    heading: ClassVar[str] = "Model"
    commands: ClassVar[tuple[str, ...]] = EVERY

    model: str = flag(
        "-m --model",
        "See 'costream models list'; auto: by the input; nanodet@640: pictures of 640 pixels.",
        default=AUTO,
        metavar="NAME|FILE",
    )
    weights: str | None = flag(  # $COSTREAM_WEIGHTS is the folder in which models are searched
        "--weights",
        "Weight file, or the folder of NAME.safetensors.",
        identity="never",
        variable=False,
        metavar="PATH",
    )
    licence: AllowedLicence | None = flag(  # None: any for a model that is named
        "--licence",
        "Use only weights that this licence class allows; non-commercial: those and free ones."
        "  [default: any for a named model, free without one]",
        identity="if set",
    )
    tokens: int | str | None = flag(
        "--tokens",
        "eventful-*: compute at most N tokens per frame, or a share of them, or those that have"
        " changed by more than T.  [default: all]  nanodet: squares of the picture that have"
        " changed by more than T of 255.  [default: '>4' from 90,000 pixels on]",
        on=VIDEO,
        parse=token_limit,
        metavar="N|25%|'>T'|all",
    )
    policy: Literal["learned", "distance"] | None = flag(
        "--policy",
        "eventful-*: of a number or share of tokens, or within a budget, compute those that a"
        " learned gate chooses, or those that have changed most.  [default: learned, if there is"
        " such a gate, as in eventful-vitdet]",
        on=VIDEO,
        identity="if set",
    )
    budget: Budget | BudgetFile | None = flag(
        "--budget",
        "Maximum cost of a step, on average; 50%: of the operations of computing every frame"
        " completely. auto, nanodet, eventful-*, cooadtr compute less to keep it; it is refused, or"
        " reported, where others take more. FILE can be edited during the run.",
        on=(*VIDEO, "listen"),
        parse=parse_budget,
        metavar="50%|40ms|20GMAC|0.5x|@FILE",
    )
    pose: Literal["lite", "full", "movenet"] | None = flag(
        "--pose",
        "Network that finds joints in video: movenet for joints in pictures of four to six persons,"
        " all at once; full has to be imported first.  [default: lite]",
        on=VIDEO,
        identity="if set",
    )
    device: str = flag(
        "--device", "Where the model runs.", default="auto", metavar="auto|cpu|cuda:N|mps"
    )
    dtype: Literal["float32", "float64", "bfloat16", "float16", "fast"] | None = flag(
        "--dtype --precision",
        "Precision of the model; fast: bfloat16 for pictures, if the processor is fast in it.",
        cli_default="float32",
    )  # None: as the model was loaded
    provider: str | None = flag(
        "--provider",
        "Where a step in ONNX runs (-m step.onnx): what this ONNX Runtime has.  [default: cpu]",
        identity="if set",
        metavar="cpu|cuda:N|tensorrt|openvino:GPU|coreml|dml",
    )
    threads: int = flag(
        "--threads", "CPU threads of the model.", default=1, identity="never", minimum=1
    )


@dataclass(frozen=True)
class InputFlags(Group):
    """Which part of the input is read, and how."""

    heading: ClassVar[str] = "Input"
    commands: ClassVar[tuple[str, ...]] = OFFLINE

    start_s: float = time_flag("--start", "Start (seconds or HH:MM:SS).", default=0.0)
    end_s: float | None = time_flag("--end", "End.")
    duration_s: float | None = time_flag(
        "--duration", "Length, instead of --end.", identity="never"
    )
    rate_hz: float | None = flag(
        "--fps",
        "Steps of the model per second. Skeletons without time stamps: their frame rate.",
        on=(*VIDEO, "features"),
        parse=step_rate,
        metavar="HZ",
    )
    input_hz: float | None = flag(
        "--input-fps",
        "Frame rate of input without time stamps (raw video, skeletons).",
        on=("detect", "batch"),
        identity="if set",
        parse=step_rate,
        metavar="HZ",
    )
    stream: str | None = flag(
        "--stream",
        "Which of several video streams to use.  [default: the one that players show, or the"
        " largest]",
        on=(*VIDEO, "features"),
        identity="if set",
        parse=parse_stream,
        metavar="N|WIDTHxHEIGHT",
    )
    decoder: Literal["auto", "software", "hardware", "fast"] = flag(
        "--decoder",
        "Video decoder. auto: hardware (NVDEC, VAAPI) if available; fast: without deblocking.",
        default="software",
        on=VIDEO,
        identity="if set",
    )
    layout: str | None = flag(
        "--layout",
        "Joint layout of skeletons (ntu-25, body-25, ...), if the file does not name it.",
        on=("detect", "batch"),
        metavar="NAME|FILE.toml",
    )
    columns: str | None = flag(
        "--columns",
        "Columns of skeleton tables: in order (frame,x,y,z) or by heading (x={}_px,y={}_py).",
        on=("detect", "batch"),
        metavar="LIST",
    )
    by: Literal["line", "word"] | None = flag(
        "--by", "Label each line, or each word.", cli_default="line", on=READ
    )
    arrival: bool = switch_flag(
        "--arrival/--no-arrival",
        "Time lines by their arrival in seconds, not by their numbers.",
        on=READ,
    )
    tls_verify: bool = switch_flag(
        "--tls-verify/--no-tls-verify",
        "Refuse servers without a valid certificate. Many cameras have none.",
        on=("detect", "listen", "batch", "watch"),
        identity="never",
    )


@dataclass(frozen=True)
class SoundFlags(Group):
    """Microphones, raw samples and levels. ``--mic`` becomes a source."""

    heading: ClassVar[str] = "Sound"
    commands: ClassVar[tuple[str, ...]] = ("listen", "watch")

    mic: str | None = flag(
        "--mic",
        "Listen to the default microphone, or to this one. 'costream doctor' lists them.",
        on=LISTEN,
        identity="never",
        variable=False,
        bare="",
        metavar="[NAME|INDEX]",
    )
    raw: RawAudioFormat | None = flag(
        "--raw",
        "Format of samples without a header: s16le:48000:2.",
        on=LISTEN,
        parse=raw_format,
        metavar="FORMAT:RATE[:CHANNELS]",
    )
    channel: int | None = flag(
        "--channel",
        "Use only this audio channel.  [default: the mean of all]",
        on=("detect", "listen", "batch", "watch"),
        minimum=1,
    )
    levels: Literal["dB", "dBA"] | None = flag(
        "--levels",
        "Write the level of each step; dBA: A-weighted too.",
        on=(*LISTEN, *BATCH, *WATCH),
        identity="if set",
    )
    full_scale_db: float = flag(
        "--full-scale",
        "Level in dB of the loudest sound that the microphone can record.",
        on=(*LISTEN, *BATCH, *WATCH),
        default=0.0,
        identity="if set",
        metavar="DB",
    )


@dataclass(frozen=True)
class LiveFlags(Group):
    """Connections of a watch, and what happens if steps take too long."""

    heading: ClassVar[str] = "Live feeds"
    commands: ClassVar[tuple[str, ...]] = WATCH

    transport: Literal["tcp", "udp"] = flag("--rtsp-transport", "Transport of RTSP.", default="tcp")
    timeout_s: float = limit_flag(
        "--timeout", "Reconnect a feed that sends no data for this time.", default=10.0
    )
    retries: int = flag(
        "--reconnect",
        "Attempts in a row before a feed is given up; -1: unlimited.",
        default=-1,
        minimum=-1,
    )
    password_file: str | None = flag(
        "--password-file",
        "File with the password for URLs that have a user name only.",
        path="file",
        metavar="FILE",
    )
    realtime: bool = switch_flag(
        "--realtime/--no-realtime", "Play files in real time, as if they were feeds."
    )
    speed: float = flag(
        "--speed", "Playback speed of files.", default=1.0, parse=positive, metavar="FACTOR"
    )
    on_late: Literal["drop", "block"] = flag(
        "--on-late",
        "If steps arrive too fast: drop the oldest, or block the feed.",
        default="drop",
    )
    max_lag_s: float = limit_flag("--max-lag", "Drop steps that wait longer.", default=2.0)


@dataclass(frozen=True)
class TimelineFlags(Group):
    """From the scores of steps to predictions and segments."""

    heading: ClassVar[str] = "Predictions and timeline"
    commands: ClassVar[tuple[str, ...]] = RUNS

    threshold: float | None = flag(
        "--threshold",
        "Probability at which a segment of any label begins.  [default: the model's]",
        parse=probability,
        metavar="P",
    )
    min_length_s: float | None = time_flag("--min-length", "Drop shorter segments.")
    min_gap_s: float | None = time_flag(
        "--min-gap", "Merge segments of a label that are closer than this."
    )
    only: tuple[str, ...] = texts_flag(  # a variable would be split at the spaces of labels
        "--only",
        "Segments of these labels only: a,b*. Repeatable.",
        identity="if set",
        variable=False,
        metavar="LABEL",
    )
    top_k: int = flag("--top-k", "Labels in each prediction.", default=3, minimum=1)
    scores: bool = switch_flag("--scores/--no-scores", "Write the probabilities of all classes.")
    wait: bool = switch_flag("--wait/--no-wait", "No output until the model's window is full.")


@dataclass(frozen=True)
class ObjectFlags(Group):
    """Objects and places in the picture."""

    heading: ClassVar[str] = "Objects and places"
    commands: ClassVar[tuple[str, ...]] = VIDEO

    track: bool = switch_flag("--track/--no-track", "Number the objects and follow them.")
    zone: tuple[Place, ...] = texts_flag(
        "--zone",
        "Report objects that enter or leave this polygon. Corners are parts of the picture, or"
        " pixels. Repeatable.",
        identity="if set",
        variable=False,
        parse=partial(parse_places, "zone"),
        metavar="NAME='X,Y ...'",
    )
    line: tuple[Place, ...] = texts_flag(
        "--line",
        "Count objects that cross this line. Repeatable.",
        identity="if set",
        variable=False,
        parse=partial(parse_places, "line"),
        metavar="NAME='X,Y ...'",
    )
    mask: tuple[Place, ...] = texts_flag(
        "--mask",
        "Hide this polygon from the model. Repeatable.",
        identity="if set",
        variable=False,
        parse=partial(parse_places, "mask"),
        metavar="NAME='X,Y ...'",
    )


@dataclass(frozen=True)
class AlertFlags(Group):
    """Alert rules and what they start. Lists of feeds may hold others, which are parsed there."""

    heading: ClassVar[str] = "Alerts"
    commands: ClassVar[tuple[str, ...]] = WATCH

    on: tuple[str, ...] = texts_flag(
        "--on",
        "Alert rule: 'LABEL>=0.8 for 2s', 'gap>=10s', 'lost'. Repeatable.",
        on=(*READ, *WATCH),
        variable=False,
        metavar="RULE",
    )
    run: tuple[str, ...] = texts_flag(
        "--run",
        "Run this command (without a shell) at each alert.",
        on=(*READ, *WATCH),
        variable=False,
        metavar="COMMAND",
    )
    post: tuple[str, ...] = texts_flag(
        "--post",
        "Post each alert to this URL as JSON.",
        on=(*READ, *WATCH),
        variable=False,
        metavar="URL",
    )
    append: tuple[str, ...] = texts_flag(
        "--append",
        "Append each alert to this file as a line of JSON.",
        on=(*READ, *WATCH),
        variable=False,
        metavar="FILE",
    )
    notify: tuple[str, ...] = texts_flag(
        "--notify",
        "Send each alert with its picture: ntfy://TOPIC, slack://..., frigate://HOST:5000, ...",
        on=(*READ, *WATCH),
        variable=False,
        metavar="URL",
    )
    describe: tuple[str, ...] = texts_flag(
        "--describe",
        "Let a model behind an API as OpenAI's say in a sentence what the picture of each alert"
        " shows.",
        variable=False,
        metavar="http[s]://HOST[:PORT]/v1?model=NAME",
    )
    clips: str | None = flag(
        "--clips",
        "Save a video of the seconds around each alert; without a value 5,5.",
        variable=False,
        bare="5,5",
        metavar="[BEFORE,AFTER]",
    )
    speech_clips: bool = flag(
        "--speech-clips/--no-speech-clips",
        "Keep clips in which somebody speaks; without, a model of sound has to recognise speech.",
        default=True,
    )
    snapshots: str | None = flag(
        "--snapshots",
        "Save a picture of each alert, with boxes and places, in this folder.",
        path="folder",
        metavar="FOLDER",
    )
    mqtt: str | None = flag(
        "--mqtt",
        "Publish states, alerts and snapshots to this broker, also for Home Assistant.",
        metavar="mqtt[s]://HOST[:PORT][/PREFIX]",
    )


@dataclass(frozen=True)
class OutputFlags(Group):
    """Files of results."""

    heading: ClassVar[str] = "Output"
    commands: ClassVar[tuple[str, ...]] = WATCH

    output: str | None = flag(  # "-" for stdout; None: a readable timeline there
        "-o --output",
        "Write files to this folder, or one table FILE.csv; '-': to stdout.",
        on=EVERY,
        identity="never",
        metavar="FOLDER|FILE.csv|-",
    )
    formats: tuple[str, ...] = texts_flag(
        "-f --format formats",
        f"Formats, separated by commas: {', '.join(FORMATS)}.  [default with -o: jsonl]",
        on=FILES,
        identity="never",
        parse=parse_formats,
        metavar="LIST",
    )
    overwrite: bool = switch_flag(
        "--overwrite/--no-overwrite", "Replace existing results.", on=OFFLINE, identity="never"
    )
    skip_existing: bool = switch_flag(
        "--skip-existing/--no-skip-existing",
        "Skip inputs whose results are complete.",
        on=FILES,
        identity="never",
    )
    write: Literal["events", "steps", "all"] | None = flag(
        "--write",
        "Write events, and steps around them; every step, without its cost; or all.  [default:"
        " events; all with -o -]",
    )
    db: str | None = flag(
        "--db",
        "Also write events to this SQLite file, which several watches may share, for 'costream"
        " search'.",
        path="file",
        metavar="FILE",
    )
    rotate: str | None = flag(
        "--rotate", "Start a new file each period, or at this size.", metavar="hour|day|SIZE"
    )
    keep: str | None = flag(
        "--keep",
        "Delete the oldest files, clips, pictures and events of a feed beyond this size, age (7d)"
        " or both.",
        metavar="SIZE,AGE",
    )


@dataclass(frozen=True)
class MonitoringFlags(Group):
    """Status and restarts of a watch."""

    heading: ClassVar[str] = "Monitoring and restarts"
    commands: ClassVar[tuple[str, ...]] = WATCH

    state_dir: str | None = flag(
        "--state-dir",
        "Save the model's state in this folder; a restart continues from it.",
        path="folder",
        metavar="FOLDER",
    )
    status_file: str | None = flag(
        "--status-file", "Write the status to this file as JSON.", path="file", metavar="FILE"
    )
    metrics: str | None = flag(
        "--metrics",
        "Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics.",
        metavar="[HOST:]PORT",
    )
    web: str | None = flag(
        "--web",
        "Serve a page with pictures, events and alerts at http://127.0.0.1:PORT/.",
        metavar="[HOST:]PORT",
    )


@dataclass(frozen=True)
class WorkerFlags(Group):
    """The processes that share the work."""

    heading: ClassVar[str] = "Workers"
    commands: ClassVar[tuple[str, ...]] = (*BATCH, *WATCH)

    jobs: int | None = flag(  # None: as many as cores and memory allow
        "--jobs",
        "Worker processes of one thread each; auto: as many as cores and memory allow.",
        cli_default="auto",
        parse=job_count,
        metavar="N|auto",
    )
    engine: Literal["local", "ray"] = flag("--engine", "Where the workers run.", default="local")
    ray_address: str | None = flag(
        "--ray-address",
        "Address of a Ray cluster.  [default: a local one]",
        metavar="HOST:PORT",
    )


@dataclass(frozen=True)
class BatchFlags(Group):
    """Which inputs a batch processes, and its tables."""

    heading: ClassVar[str] = "Batch"
    commands: ClassVar[tuple[str, ...]] = BATCH

    include: tuple[str, ...] = texts_flag(
        "--include", "Process only matching inputs. Repeatable.", metavar="GLOB"
    )
    exclude: tuple[str, ...] = texts_flag(
        "--exclude", "Skip matching inputs. Repeatable.", metavar="GLOB"
    )
    limit: int | None = flag("--limit", "Process only the first N inputs.", minimum=1)
    dry_run: bool = switch_flag("--dry-run", "Print what would be done.")
    file_timeout_s: float | None = limit_flag(
        "--timeout-per-file", "Abort a file that takes longer."
    )
    fail_fast: bool = switch_flag("--fail-fast/--no-fail-fast", "Stop at the first failure.")
    hash: bool = switch_flag(
        "--hash/--no-hash", "Recognise inputs by their content, not by size and time."
    )
    timings: bool = switch_flag(
        "--timings/--no-timings", "Write wall-clock times into the results."
    )
    predictions: Literal["csv", "parquet", "none"] = flag(
        "--predictions", "Format of the table of all predictions.", default="csv"
    )


@dataclass(frozen=True)
class GeneralFlags(Group):
    """What is shown during a run."""

    heading: ClassVar[str] = "General"
    commands: ClassVar[tuple[str, ...]] = RUNS

    live: bool = flag(
        "--live/--no-live",
        "Live view, if stderr is a terminal.",
        default=True,
        identity="never",
    )
    color: ColorMode = flag("--color", "Colours.", default="auto", identity="never")
    log_file: str | None = flag(
        "--log-file",
        "Also log warnings and settings to this file.",
        identity="never",
        metavar="FILE",
    )
    verbose: int = flag(
        "-v --verbose",
        "More messages; -vv: also tracebacks.",
        default=0,
        on=EVERY,
        identity="never",
        counted=True,
    )
    quiet: bool = switch_flag("-q --quiet", "Only errors on stderr.", on=EVERY, identity="never")
