"""Python files of the user's that a command runs: ``costream --code FILE.py``, and imports of them.

What they register can be used from then on. Weight files can name their functions, which by
themselves never run code. Does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

from costream.core.errors import CostreamError, ModelError, UsageError

_SPEC = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_RUN: dict[Path, dict[str, Any]] = {}  # names by path of the file


def run_code(path: Path | str) -> None:
    """Run a Python file. Raises UsageError if it fails.

    A file that has been run is not run again.
    """
    path = Path(path).resolve()
    if path in _RUN:
        return
    try:
        _RUN[path] = run_path(str(path), run_name=path.stem)
    except CostreamError:
        raise
    except Exception as error:
        raise UsageError(f"{type(error).__name__}: {error}", where=path) from error


def code_files() -> tuple[str, ...]:
    """Return the paths of the files that were run."""
    return tuple(map(str, _RUN))


def function_of(file: str, name: str) -> Callable[[], Any]:
    """Return a function of a file that was run; ``file``: its name, without the folder.

    Raises ModelError if it was not run, has no such function, or if several files of that name do.
    """
    run = [path for path in _RUN if path.name == file]
    if not run:
        what = f"the network is in {file}, which was not run"
        raise ModelError(what, hint=f"costream --code {file} ... (it runs the file: read it first)")
    found = [path for path in run if callable(_RUN[path].get(name))]
    if not found:
        raise ModelError(f"has no function {name!r}", where=run[-1])
    if len(found) > 1:
        what = f"the network is {name!r} of {file}, and several such files were run"
        raise ModelError(what, hint=f"run one of {', '.join(map(str, found))}")
    function: Callable[[], Any] = _RUN[found[0]][name]
    return function


def split_spec(text: str) -> tuple[Path, str] | None:
    """Return file and function of ``FILE.py:FUNCTION``, or None for anything else."""
    match = _SPEC.fullmatch(text)
    return None if match is None else (Path(match[1]), match[2])
