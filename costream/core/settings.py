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
from collections.abc import Container, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from costream.core.errors import CostreamError, UsageError
from costream.core.spelling import stored_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ColorMode = Literal["auto", "always", "never"]
COMMANDS = ("detect", "listen", "read", "watch", "batch", "features", "train", "evaluate", "find")
PROJECT_FILE = "costream.toml"
AUTO = "auto"  # the name that stands for free models, by the kind of the source
# Options that start programs, write or delete files, open ports, send results or passwords. They
# are not taken from PROJECT_FILE, which may be part of a folder that another person has made.
OUTWARD = frozenset(
    {
        *("run", "post", "append", "notify", "describe", "mqtt", "metrics", "web"),
        *("ray_address", "password_file", "code"),
        *("output", "overwrite", "db", "snapshots", "keep", "state_dir", "status_file", "log_file"),
        *("cache", "png"),
    }
)
_LONGEST = 10_000_000  # bytes of a TOML file


def user_config_path() -> Path:
    """Return the path of the user's configuration file, by platform convention."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "costream" / "config.toml"


def load_config(
    command: str,
    options: Iterable[str],
    extra: str | None = None,
    *,
    switches: Container[str] = (),
    origins: dict[str, Path] | None = None,
) -> dict[str, Any]:
    """Return the values that the configuration files set for a command; later files win.

    ``options`` are the command's long option names with underscores; ``extra`` is a file named
    with -c, which then replaces ./costream.toml and must exist. ``switches``: options that may be
    true or false. ``origins`` receives the file of each value. Unknown keys and tables raise
    UsageError, and so do OUTWARD ones in ./costream.toml.
    """
    names = set(options)
    values: dict[str, Any] = {}
    missing = "no such configuration file" if extra else None
    for path, words in ((user_config_path(), None), (Path(extra or PROJECT_FILE), missing)):
        for key, value in _settings_of(command, read_toml(path, words), path).items():
            name = str(key).replace("-", "_")
            if name not in names:
                raise _unknown_error(str(key), names, command, path)
            if name in OUTWARD and path == Path(PROJECT_FILE) and not extra:
                raise _outward_error(str(key), path)
            if isinstance(value, bool) and name not in switches:
                what = f"{key} takes a value, not {str(value).lower()}"
                raise UsageError(what, where=path)
            values[name] = value
            if origins is not None:
                origins[name] = path
    return values


def _settings_of(command: str, table: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the keys for a command: those above the tables, and those of its table."""
    section = table.pop(command, {})
    if not isinstance(section, dict):
        raise UsageError(f"[{command}] must be a table", where=path)
    for key, value in table.items():
        if isinstance(value, dict) and key not in COMMANDS:
            hint = f"tables are named after commands: {', '.join(COMMANDS)}"
            raise UsageError(f"unknown table [{key}]", where=path, hint=hint)
    shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
    return {**shared, **section}


def _unknown_error(key: str, options: Iterable[str], command: str, path: Path) -> UsageError:
    """Return the error for a key that is not an option of the command."""
    keys = [option.replace("_", "-") for option in options]
    similar = get_close_matches(key.replace("_", "-"), keys, 2)
    hint = f"'costream {command} --help' lists the options"
    if similar:
        hint = f"did you mean {' or '.join(similar)}?"
    return UsageError(f"unknown setting {key!r}", where=path, hint=hint)


def _outward_error(key: str, path: Path) -> UsageError:
    """Return the error for a setting that a file of the current folder must not have."""
    what = f"{key!r} is not taken from a file of the current folder"
    hint = (
        f"it may start programs, write files or send data: use --{key.replace('_', '-')},"
        f" name the file with -c {path}, or write it into {user_config_path()}"
    )
    return UsageError(what, where=path, hint=hint)


def read_toml(
    path: Path,
    missing: str | None = "no such configuration file",
    error_class: type[CostreamError] = UsageError,
) -> dict[str, Any]:
    """Return the content of a TOML file. Raise ``error_class`` when it cannot be read.

    ``missing``: the error for a file that does not exist; None: the content is then empty.
    """
    path = Path(stored_path(str(path)))
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST / 1e6:g} MB")
        table: dict[str, Any] = tomllib.loads(text.decode("utf-8-sig"))
        _check_values(table)
        return table
    except (ValueError, RecursionError) as error:  # of encodings and of very long numbers, too
        raise error_class(f"not valid TOML ({error})", where=path) from error
    except OSError as error:
        if missing is None and not os.path.exists(path):  # or in a folder that is closed to us
            return {}
        if isinstance(error, FileNotFoundError):
            raise error_class(str(missing), where=path) from None
        raise error_class(f"cannot be read ({error.strerror})", where=path) from error


def _check_values(value: Any) -> None:
    """Raise ValueError for a text with a zero byte, or an integer beyond TOML's 64 bits."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"a zero byte in {value!r:.80}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"a number of more than 64 bits: {value!s:.20}...")
    if isinstance(value, (dict, list)):
        for part in (*value, *(value.values() if isinstance(value, dict) else ())):
            _check_values(part)
