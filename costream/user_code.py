"""Python files of the user's that a command runs: ``costream --code FILE.py``, and imports of them.

What they register is known from then on; their functions can be named by weight files, which by
themselves never run code. Does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

from costream.errors import CostreamError, ModelError, UsageError

_SPEC = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_RUN: dict[str, tuple[Path, dict[str, Any]]] = {}  # path and names by name of the file


def run_code(path: Path | str) -> None:
    """Run a Python file. Raises UsageError if it fails.

    A file that has been run is not run again.
    """
    path = Path(path).resolve()
    if _RUN.get(path.name, (None,))[0] == path:
        return
    try:
        _RUN[path.name] = path, run_path(str(path), run_name=path.stem)
    except CostreamError:
        raise
    except Exception as error:
        raise UsageError(f"{type(error).__name__}: {error}", where=path) from error


def code_files() -> tuple[str, ...]:
    """Return the paths of the files that were run."""
    return tuple(str(path) for path, _ in _RUN.values())


def function_of(file: str, name: str) -> Callable[[], Any]:
    """Return a function of a file that was run.

    Raises ModelError if it was not run, or has no such function.
    """
    if file not in _RUN:
        what = f"the network is in {file}, which was not run"
        raise ModelError(what, hint=f"costream --code {file} ... (it runs the file: read it first)")
    path, names = _RUN[file]
    if not callable(names.get(name)):
        raise ModelError(f"has no function {name!r}", where=path)
    function: Callable[[], Any] = names[name]
    return function


def split_spec(text: str) -> tuple[Path, str] | None:
    """Return file and function of ``FILE.py:FUNCTION``, or None for anything else."""
    match = _SPEC.fullmatch(text)
    return None if match is None else (Path(match[1]), match[2])
