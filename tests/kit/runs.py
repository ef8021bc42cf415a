"""Runs of the program that have to succeed."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from kit.program import costream


def run(*args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; fail the test unless the exit code is 0."""
    done = costream(*args, **kwargs)
    assert done.returncode == 0, done.stderr
    return done


def evaluate(*args: object) -> dict[str, Any]:
    """Return the metrics of ``costream evaluate --json`` with these arguments."""
    metrics: dict[str, Any] = json.loads(run("evaluate", *args, "--json").stdout)
    return metrics
