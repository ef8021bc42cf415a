"""Runs of the program, and what they leave behind: records, tables, folders."""

from __future__ import annotations

import csv
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.program import costream


def run(*args: object, code: int = 0, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; fail the test if the exit code is another."""
    done = costream(*args, **kwargs)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def refused(code: int, words: str, *args: object, **kwargs: Any) -> str:
    """Run the program; return its only line, an error with these words, beside the exit code."""
    done = run(*args, code=code, **kwargs)
    assert words in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    return done.stderr


def evaluate(*args: object) -> dict[str, Any]:
    """Return the metrics of ``costream evaluate --json`` with these arguments."""
    metrics: dict[str, Any] = json.loads(run("evaluate", *args, "--json").stdout)
    return metrics


def records(source: Path | str, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the records of a file or of the text of one; ``kind``: only those of a type."""
    text = source if isinstance(source, str) else source.read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if kind in (None, line["type"])]


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of comma-separated values."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def wait_until(
    condition: Callable[[], object],
    child: subprocess.Popen[bytes] | None = None,
    timeout_s: float = 90.0,
) -> None:
    """Wait until something is the case, while ``child`` runs."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        if child is not None and child.poll() is not None:
            assert child.stderr is not None
            raise AssertionError(f"ended with {child.returncode}: {child.stderr.read()!r}")
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.02)


def lines_in(path: Path) -> int:
    """Return how many lines a growing file has; 0 where there is none yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
