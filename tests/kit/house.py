"""Counts of the source tree: rooms, imports, lines, long functions, files that a step enters.

``python tests/kit/house.py [ROOT]`` prints them for a checkout, also an older one;
``tests/test_house.py`` checks those that have a limit. A room is a folder of the package or a
module that lies beside the folders.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

# Runs commands in a traced process; prints for each the package's files whose functions are called
# between the second and the fifth call of ``step`` or ``steps``, in any thread.
_TRACE = """
import json, sys, threading
files, calls = set(), 0

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
found = []
for command in json.loads(sys.argv[1]):
    files, calls = set(), 0
    threading.setprofile(profile)
    sys.setprofile(profile)
    code = main(command)
    sys.setprofile(None)
    threading.setprofile(None)
    assert code == 0 and calls >= 5, (code, calls)
    found.append(sorted(f for f in files if "/costream/" in f))
print("\\n" + json.dumps(found))
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


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of nodes that lead to one another."""

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


def import_circles(root: Path) -> list[set[str]]:
    """Return the groups of modules that import one another."""
    return _circles(imports(root))


def room(module: str) -> str:
    """Return the room of a module, "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def arrows(root: Path) -> dict[str, set[str]]:
    """Return the other rooms that each room imports."""
    found: dict[str, set[str]] = {room(name): set() for name in sources(root)}
    for name, imported in imports(root).items():
        found[room(name)] |= {room(n) for n in imported} - {room(name)}
    return found


def back_arrows(root: Path) -> int:
    """Return how many arrows between rooms must go before no circle of rooms is left."""
    graph, back = arrows(root), 0
    for circle in _circles(graph):
        if len(circle) > 8:
            raise ValueError(f"too many orders of {sorted(circle)} to try each")
        back += min(
            sum(b in graph[a] for k, a in enumerate(order) for b in order[:k])
            for order in permutations(circle)
        )
    return back


def long_functions(root: Path, limit: int = 60) -> list[str]:
    """Return the functions of more lines than ``limit``, as module:name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{name}:{node.name}"
        for name, path in sources(root).items()
        for node in ast.walk(tree(path))
        if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno + 1 > limit
    ]


def ruff_findings(root: Path, rule: str, setting: str) -> int:
    """Return how often the package breaks a rule of ruff, exceptions with a reason included."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--exit-zero"]
    options = ["--select", rule, "--config", setting, "--output-format", "json"]
    done = subprocess.run(
        [*command, *options, "costream"], cwd=root, capture_output=True, text=True, check=True
    )
    return len(json.loads(done.stdout))


def count_words(root: Path, word: str) -> int:
    """Return how often a name occurs in the package's code and texts."""
    pattern = re.compile(rf"\b{word}\b")
    return sum(len(pattern.findall(path.read_text("utf-8"))) for path in sources(root).values())


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


def files_entered(root: Path, *commands: Sequence[str]) -> list[list[str]]:
    """Return the modules that run while each command takes three steps, after the first two."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", _TRACE, json.dumps(commands)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    entered: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return entered


# Short runs of the program.
FRAME = ("detect", "samples/room.mp4", "-m", "cooadtr", "--end", "16", "-o", "-", "-q")
SOUND = ("listen", "samples/street.ogg", "-m", "cosounds", "-o", "-", "-q")
SKELETON = ("detect", "samples/moves.csv", "-m", "costgcn", "-o", "-", "-q")


def counts(root: Path) -> dict[str, Any]:
    """Return all counts of a checkout."""
    package, tests = list(sources(root).values()), sorted((root / "tests").rglob("*.py"))
    frame, sound, row = files_entered(root, FRAME, SOUND, SKELETON)
    return {
        "rooms": len(arrows(root)),
        "arrows between rooms": sum(map(len, arrows(root).values())),
        "back arrows": back_arrows(root),
        "import circles": len(import_circles(root)),
        "files": len(package),
        "lines": count_lines(package),
        "longest file": max(count_lines([p]) for p in package),
        "test files": len(tests),
        "test lines": count_lines(tests),
        "functions over complexity 10": ruff_findings(
            root, "C901", "lint.mccabe.max-complexity=10"
        ),
        "functions of more than 8 parameters": ruff_findings(
            root, "PLR0913", "lint.pylint.max-args=8"
        ),
        "functions over 60 lines": len(long_functions(root)),
        "Any": count_words(root, "Any"),
        "public class names twice": len(repeated_classes(root)),
        "files that pass --budget on": len(files_of_flag(root, "budget")),
        "files entered by a frame": len(frame),
        "files entered by a block of sound": len(sound),
        "files entered by a row of a skeleton": len(row),
    }


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    print(json.dumps(counts(where), indent=2))
