"""The version of the code: the number of the release, and the commit if there is one."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from costream.core.version import __version__

_HERE = os.path.dirname(__file__)
COMMIT_FILE = os.path.join(_HERE, "commit.txt")  # in wheels and sdists: see .ci/build_hook.py


@cache
def code_version() -> str:
    """Return the release and the commit that the code is of: ``0.2.0+g1a2b3c4d5``.

    The release alone where the commit is its tag, or is not known. ``.dirty`` follows where files
    differ from the commit.
    """
    try:
        with open(COMMIT_FILE, encoding="ascii") as file:
            commit = file.read().strip()
    except OSError:
        commit = describe(os.path.dirname(os.path.dirname(_HERE)))
    return f"{__version__}+{commit}" if commit else __version__


def describe(checkout: str | os.PathLike[str]) -> str:
    """Return the commit of a git checkout, "g" first; "" for the release's tag or no checkout."""
    if not os.path.exists(os.path.join(checkout, ".git")):
        return ""
    command = ["git", "-C", str(checkout), "describe", "--tags", "--long", "--always"]
    command += ["--dirty=.dirty", "--abbrev=9", "--match", f"v{__version__}"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    tag, distance, commit = ["", "", *done.stdout.strip().rsplit("-", 2)][-3:]
    if tag and distance == "0" and not commit.endswith(".dirty"):
        return ""
    return commit if tag else f"g{commit}"
