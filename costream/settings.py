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
from pathlib import Path
from typing import Any, Literal

from costream.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ColorMode = Literal["auto", "always", "never"]
PROJECT_FILE = "costream.toml"


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
    project = (Path(PROJECT_FILE), None) if not extra else (Path(extra),)
    for path, *missing in ((user_config_path(), None), project):
        table = read_toml(path, *missing)
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


def read_toml(path: Path, missing: str | None = "no such configuration file") -> dict[str, Any]:
    """Return the content of a TOML file. UsageError when it cannot be read.

    ``missing``: the error for a file that does not exist; None: the content is then empty.
    """
    try:
        with path.open("rb") as file:
            table: dict[str, Any] = tomllib.load(file)
            return table
    except FileNotFoundError:
        if missing is None:
            return {}
        raise UsageError(missing, where=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not valid TOML ({error})", where=path) from error
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=path) from error
