"""Runs ``costream`` as a process, apart from the settings of whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COSTREAM = [sys.executable, "-m", "costream"]
NOWHERE = str(ROOT / "tests" / "no-such-home")


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Give this process's environment without costream's variables and user settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COSTREAM_")}
    homes = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "APPDATA", "LOCALAPPDATA"), NOWHERE)
    drawing = {"MPLCONFIGDIR": tempfile.gettempdir()}  # matplotlib would make that folder
    return {**kept, **homes, **drawing, "PYTHONPATH": str(ROOT), **(extra or {})}


def costream(
    *args: object, env: dict[str, str] | None = None, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; text in and out is UTF-8."""
    return python("-m", "costream", *args, env=env, **kwargs)


def python(
    *args: object, env: dict[str, str] | None = None, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in the same surroundings."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env=environment(env),
        check=False,
        **kwargs,
    )


def start(*args: object, **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start the program and give the process, its output as pipes of bytes."""
    return subprocess.Popen(
        [*COSTREAM, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **{"env": environment(), **kwargs},
    )
