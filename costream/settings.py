"""Settings by precedence: defaults < user config < ./costream.toml < COSTREAM_* < flags.

Configuration files are TOML. Keys are the long option names; a table named after a command
applies to that command only::

    device = "cpu"
    [detect]
    top-k = 5
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from costream.errors import UsageError
from costream.records import RawAudioFormat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ColorMode = Literal["auto", "always", "never"]
PROJECT_FILE = "costream.toml"


@dataclass(frozen=True)
class DetectSettings:
    """Validated settings of ``costream detect``. None means: the model card decides."""

    sources: tuple[str, ...]
    model: str
    weights: str | None
    output: str | None  # folder, "-" for stdout, None: timeline on a terminal, else JSONL
    formats: tuple[str, ...]
    start_s: float
    end_s: float | None
    rate_hz: float | None
    layout: str | None  # skeletons: name of the joint layout, or a TOML file; None: detected
    columns: str | None  # skeletons: columns of a table; None: detected
    threshold: float | None
    min_length_s: float | None
    min_gap_s: float | None
    top_k: int
    scores: bool
    wait: bool
    device: str
    dtype: str
    threads: int
    overwrite: bool
    skip_existing: bool
    live: bool
    color: ColorMode
    verbosity: int  # -1 quiet, 0 normal, 1 and 2 more
    log_file: str | None
    channel: int | None = None  # audio: channel number, from 1; None: the mean of all
    raw: RawAudioFormat | None = None  # audio: format of raw samples on a pipe
    tokens: int | None = None  # token-gated models: tokens computed per frame; None: all
    budget: str | None = None  # of a step: "40ms", "20GMAC", "0.5x", or "@FILE" that contains one
    track: bool = False  # assign track ids to objects


@dataclass(frozen=True)
class BatchSettings:
    """Validated settings of ``costream batch``."""

    detect: DetectSettings  # settings for each input
    arguments: tuple[str, ...]  # files, folders, @LIST, "-"
    output: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    jobs: int | None  # worker processes; None: as many as cores and memory allow
    engine: Literal["local", "ray"]
    ray_address: str | None
    timeout_s: float | None  # for one input
    fail_fast: bool
    limit: int | None  # maximum number of inputs
    dry_run: bool
    hash: bool  # identify inputs by content, not by time
    timings: bool  # wall-clock times in the results
    predictions: Literal["csv", "parquet", "none"]  # the table of all predictions
    overwrite: bool
    skip_existing: bool


@dataclass(frozen=True)
class WatchSettings:
    """Validated settings of ``costream watch``."""

    detect: DetectSettings  # settings for each feed; its output is the folder
    arguments: tuple[str, ...]  # URLs, cameras, microphones, files, TOML lists of feeds
    password_file: str | None
    transport: Literal["tcp", "udp"]
    timeout_s: float  # a feed without data for this long is lost
    retries: int  # attempts in a row before a feed is given up; -1: unlimited
    realtime: bool  # accept files as feeds
    speed: float  # playback speed of files
    on_late: Literal["drop", "block"]
    max_lag_s: float
    budget: str | None  # as for detect; a share of real time applies to all feeds together
    on: tuple[str, ...]
    run: tuple[str, ...]
    post: tuple[str, ...]
    append: tuple[str, ...]
    clips: str | None  # seconds before and after an alert
    rotate: str | None
    keep: str | None
    state_dir: str | None
    status_file: str | None
    metrics: str | None


def user_config_path() -> Path:
    """Return the path of the user's configuration file, by platform convention."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "costream" / "config.toml"


def load_config(command: str, options: Iterable[str], extra: str | None = None) -> dict[str, Any]:
    """Return the values that the configuration files set for a command; later files win.

    ``options`` are the command's long option names with underscores; ``extra`` is a file named
    with -c, which then replaces ./costream.toml and must exist. Unknown keys raise UsageError.
    """
    known = set(options)
    values: dict[str, Any] = {}
    for path, required in ((user_config_path(), False), (Path(extra or PROJECT_FILE), bool(extra))):
        table = read_toml(path, required)
        section = table.pop(command, {})
        if not isinstance(section, dict):
            raise UsageError(f"[{command}] must be a table", where=path)
        shared = {k: v for k, v in table.items() if not isinstance(v, dict)}
        for key, value in {**shared, **section}.items():
            name = str(key).replace("-", "_")
            if name not in known:
                raise UsageError(
                    f"unknown setting {key!r}",
                    where=path,
                    hint=f"'costream {command} --help' lists the options",
                )
            values[name] = value
    return values


def read_toml(path: Path, required: bool = True) -> dict[str, Any]:
    """Return the content of a TOML file; empty if it is missing and not ``required``."""
    try:
        with path.open("rb") as file:
            table: dict[str, Any] = tomllib.load(file)
            return table
    except FileNotFoundError:
        if required:
            raise UsageError("no such configuration file", where=path) from None
        return {}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML ({error})", where=path) from error
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=path) from error
