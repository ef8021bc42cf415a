"""The structure of the source tree: directions of imports, what loads torch."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from kit.house import (
    FRAME,
    SKELETON,
    SOUND,
    back_arrows,
    docstrings_with_give,
    files_entered,
    files_of_flag,
    import_circles,
    imports,
    repeated_classes,
    sources,
)
from kit.paths import ROOT

# part -> the parts that it may import besides itself
MAY = {
    "core": set(),
    "nn": set(),
    "draw": {"core"},
    "weights_io": {"core"},
    "sources": {"core"},
    "sinks": {"core", "draw"},
    "models": {"core", "nn", "weights_io"},
    "labels": {"core", "sources", "sinks"},
    "ui": {"core", "draw"},
    "options": {"core", "models", "sinks", "sources", "weights_io"},
    "runtime": {"core", "options", "sources", "models", "sinks", "ui", "weights_io", "nn"},
    "report": {"core", "draw", "sources", "sinks"},
}
_ALL = {"core", "options", "runtime", "models", "sources", "sinks", "labels", "draw", "weights_io"}
MAY["evaluation"] = _ALL
MAY["bench"] = {*_ALL, "api", "evaluation", "nn"}
MAY["training"] = {*_ALL, "evaluation", "nn", "report"}
MAY["cli"] = {*_ALL, "bench", "training", "evaluation", "report", "ui"}
MAY["api"] = {*_ALL, "report"}


def test_imports_point_in_one_direction():
    wrong = []
    for module, names in imports(ROOT).items():
        part = module.split(".")[1] if "." in module else ""
        if part in ("", "__main__"):  # the public API and the program: see __init__
            continue
        allowed = {part, *MAY[part]}
        wrong += [
            f"{module} imports {n}"
            for n in names
            if n.count(".") and n.split(".")[1] not in allowed
        ]
    assert not wrong


def test_every_part_has_a_rule():
    folder = ROOT / "costream"
    assert {p.parent.name for p in folder.glob("*/__init__.py")} == set(MAY)
    assert {p.stem for p in folder.glob("*.py")} == {"__init__", "__main__"}


def test_no_import_circle():
    assert import_circles(ROOT) == []
    assert back_arrows(ROOT) == 0  # nor of parts


def test_no_public_class_name_twice():
    assert repeated_classes(ROOT) == {}


def test_files_bear_no_name_of_the_standard_library():
    names = {p.stem for p in sources(ROOT).values()} & sys.stdlib_module_names
    assert names <= {"__main__"}


def test_docstrings_say_what_is_returned():
    paths = [
        *sources(ROOT).values(),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "weights").rglob("*.py"),
    ]
    assert docstrings_with_give(paths) == []


@pytest.mark.long
def test_few_files_see_a_flag_and_a_step():
    assert len(files_of_flag(ROOT, "budget")) <= 20
    frame, sound, row = files_entered(ROOT, FRAME, SOUND, SKELETON)
    assert len(frame) <= 34, frame  # each of one subject
    assert len(sound) <= 33, sound
    assert len(row) <= 32, row


def test_nn_imports_only_torch_and_the_standard_library():
    """But for its compiled loops, which are loaded when a network needs them."""
    wrong = []
    for path in (ROOT / "costream" / "nn").rglob("*.py"):
        allowed = {"torch", "costream", *sys.stdlib_module_names}
        if path.name in ("compiled.py", "int8_kernel.py") or path.stem.endswith("_kernels"):
            allowed |= {"numba", "numpy"}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            wrong += [f"{path.name} imports {n}" for n in names if n.split(".")[0] not in allowed]
    assert not wrong


@pytest.mark.slow
def test_compiled_loops_are_loaded_when_they_are_wanted():
    code = "import sys, costream.models.video.video3d.network; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
        "import os; os.environ |= {'_COSTREAM_COMPLETE': 'bash_complete', 'COMP_CWORD': '3',"
        " 'COMP_WORDS': 'costream detect -m co'}; import costream.__main__ as m; m.main([])",
        "from costream.__main__ import main; assert main(['detect', '--help']) == 0",
        "from costream.__main__ import main; assert main(['detect', '--nonsense']) == 2",
        "from costream.__main__ import main; assert main(['listen', '--help']) == 0",
        "from costream.__main__ import main; assert main(['listen']) == 2",
        "from costream.__main__ import main; assert main(['detect', 'no-such-file.mp4']) == 4",
    ],
)
def test_loads_no_torch(code):
    assert "torch" not in run_and_list_modules(code)
