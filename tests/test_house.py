"""The house keeps its shape: directions of imports, what loads torch, file lengths."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "costream"
COMMON = {"records", "clock", "errors", "redact", "layouts", "status"}

# package -> parts it may import besides itself and COMMON (DESIGN: the house)
MAY = {
    "nn": set(),
    "frontends": {"nn"},
    "checkpoints": {"nn", "models.card"},
    "models": {"frontends", "nn", "checkpoints", "sources.base"},
    "sources": set(),
    "sinks": set(),
    "ui": {"sinks.base", "sinks.cost", "sinks.figure"},
    "labels": {"sources", "report.reading", "sinks.registry", "checkpoints.labels"},
    "evaluation": {
        *{"runtime", "models", "sources", "labels", "bench.table", "report.reading"},
        *{"checkpoints.labels", "checkpoints.weights_file", "sinks.drawing", "sinks.font"},
    },
    "runtime": {"sources", "models", "sinks", "ui", "settings", "nn.memory"},
    "report": {"sources", "sinks", "ui"},
    "bench": {
        *{"runtime", "sources", "models", "sinks", "nn", "frontends"},
        "evaluation.detection",
    },
    "training": {
        *{"frontends", "nn", "models", "checkpoints", "evaluation", "sources", "runtime"},
        *{"report", "labels"},
    },
    "cli": {
        *{"runtime", "bench", "report", "models", "sources", "sinks", "ui", "settings"},
        *{"checkpoints", "training", "evaluation"},
    },
}


def imports_of(path: Path) -> set[str]:
    """Dotted names below ``costream`` that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            names = {a.name for a in node.names}
        else:
            continue
        found |= {n.removeprefix("costream.") for n in names if n.startswith("costream.")}
    return found


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("part", sorted(MAY))
def test_imports_point_in_one_direction(part):
    allowed = COMMON | MAY[part] | {part}
    wrong = []
    for path in (PACKAGE / part).rglob("*.py"):
        for name in imports_of(path):
            if name == "__version__":
                continue
            if not any(name == a or name.startswith(a + ".") for a in allowed):
                # ``from costream.sources import base`` names both parts: the longer one counts
                if any(a.startswith(name + ".") for a in allowed):
                    continue
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_every_part_has_a_rule():
    parts = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert parts == set(MAY)


# Loops that PyTorch has not: ``costream.nn.fast`` imports them when a network wants them.
COMPILED = {"compiled.py", "depthwise.py", "kernels.py"}


def test_nn_imports_only_torch_and_the_standard_library():
    wrong = []
    for path in (PACKAGE / "nn").rglob("*.py"):
        allowed = {"torch", "costream"}
        if path.name in COMPILED:
            allowed |= {"numba", "llvmlite", "numpy"}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                top = name.split(".")[0]
                if top not in allowed and top not in sys.stdlib_module_names:
                    wrong.append(f"{path.name} imports {name}")
    assert not wrong


def test_compiled_loops_are_loaded_when_they_are_wanted():
    code = "import sys, costream.models.video3d; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_file_is_too_long():
    assert {p.name: n for p in sources() if (n := p.read_text("utf-8").count("\n")) > 400} == {}


def run_and_list_modules(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import costream",
        "import costream.labels.reading",
        "from costream.__main__ import main; assert main(['--help']) == 0",
        "from costream.__main__ import main; assert main(['--version']) == 0",
        "from costream.__main__ import main; assert main(['models', 'list']) == 0",
        "from costream.__main__ import main; assert main(['detect', '--help']) == 0",
        "from costream.__main__ import main; assert main(['detect', '--nonsense']) == 2",
        "from costream.__main__ import main; assert main(['listen', '--help']) == 0",
        "from costream.__main__ import main; assert main(['listen']) == 2",
        "from costream.__main__ import main; assert main(['detect', 'no-such-file.mp4']) == 4",
    ],
)
def test_loads_no_torch(code):
    assert "torch" not in run_and_list_modules(code)
