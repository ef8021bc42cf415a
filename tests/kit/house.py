"""Counts of the source tree: files, lines, imports, duplicate names, files entered by a frame.

``python tests/kit/house.py [ROOT]`` prints them for a checkout; ``tests/test_house.py`` holds them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

# Runs a command in a traced process; prints the package's files whose functions are called between
# the second and the fifth call of ``step`` or ``steps``, in any thread.
_TRACE = """
import sys, threading
files, calls, main = set(), 0, None

def profile(frame, event, argument):
    global calls
    if event == "call":
        code = frame.f_code
        if code.co_name in ("step", "steps") and code.co_filename.endswith("models/streaming.py"):
            calls += 1
        if 2 <= calls < 5:
            files.add(code.co_filename)

# Loaded before it is traced, which takes long.
import numba, torch, costream.cli, costream.runtime.detect
from costream.__main__ import main
threading.setprofile(profile)
sys.setprofile(profile)
code = main(sys.argv[1:])
sys.setprofile(None)
threading.setprofile(None)
assert code == 0 and calls >= 5, (code, calls)
print(*sorted(f for f in files if "/costream/" in f), sep="\\n", file=sys.stderr)
"""


@cache
def sources(root: Path) -> dict[str, Path]:
    """Return the modules of the package by dotted name."""
    found = {}
    for path in sorted((root / "costream").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text("utf-8"))


def count_lines(paths: Iterable[Path]) -> int:
    """Return the lines of all files together."""
    return sum(path.read_text("utf-8").count("\n") for path in paths)


@cache
def imports(root: Path) -> dict[str, set[str]]:
    """Return what each module imports of the package: on top, inside functions, for types."""
    modules, found = sources(root), {}
    for name, path in modules.items():
        wanted: set[str] = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = {a.name: f"{node.module}.{a.name}" for a in node.names}
                wanted |= {n if n in modules else node.module for n in names.values()}
            elif isinstance(node, ast.Import):
                wanted |= {a.name for a in node.names}
        found[name] = {n for n in wanted if n in modules and n != name}
    return found


def import_circles(root: Path) -> list[set[str]]:
    """Return the groups of modules that import one another."""
    graph = imports(root)

    def reach(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for name in graph[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        return seen

    reached = {name: reach(name) for name in graph}
    circles = {
        frozenset(b for b in reached[name] if name in reached[b])
        for name in graph
        if name in reached[name]
    }
    return [set(circle) for circle in circles]


def repeated_classes(root: Path) -> dict[str, list[str]]:
    """Return the public class names that several modules define, and the modules."""
    where = defaultdict(list)
    for name, path in sources(root).items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(name)
    return {name: places for name, places in where.items() if len(places) > 1}


def docstrings_with_give(paths: Iterable[Path]) -> list[str]:
    """Return the names of the files with texts in three quotes that begin with "Give"."""
    return [path.name for path in paths if re.search(r'"{3}Gives?\b', path.read_text("utf-8"))]


def files_of_flag(root: Path, name: str) -> list[str]:
    """Return the modules that pass a command-line option on: as attribute, keyword or text."""
    pattern = re.compile(rf'\.{name}\b(?!\.)|\b{name}=|"{name}"|--{name}\b')
    return [m for m, path in sources(root).items() if pattern.search(path.read_text("utf-8"))]


def files_entered(root: Path, *command: str) -> list[str]:
    """Return the modules that run while a command takes three steps, after the first two."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", _TRACE, *command],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stderr.splitlines() if line.endswith(".py")]


def counts(root: Path) -> dict[str, Any]:
    """Return all counts of a checkout."""
    package, tests = list(sources(root).values()), sorted((root / "tests").rglob("*.py"))
    frame = ("detect", "samples/room.mp4", "--end", "16", "-o", "-", "-q")
    sound = ("listen", "samples/street.ogg", "-m", "cosounds", "-o", "-", "-q")
    return {
        "files": len(package),
        "lines": count_lines(package),
        "longest file": max(count_lines([p]) for p in package),
        "test files": len(tests),
        "test lines": count_lines(tests),
        "import circles": len(import_circles(root)),
        "public class names twice": len(repeated_classes(root)),
        "files with docstrings that begin with Give": len(docstrings_with_give([*package, *tests])),
        "files that pass --budget on": len(files_of_flag(root, "budget")),
        "files entered by a frame": len(files_entered(root, *frame)),
        "files entered by a block of sound": len(files_entered(root, *sound)),
    }


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    print(json.dumps(counts(where), indent=2))
