"""Shell completion: interactive shells in which somebody types and presses Tab."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kit.program import costream, environment, on_terminal

SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(costream completion bash)"'),
    "zsh": (
        ["-f", "-i"],
        'autoload -U compinit; compinit -D -u; eval "$(costream completion zsh)"',
    ),
    "fish": (["--no-config", "-i"], "costream completion fish | source"),
}
# Runs the program for the shell's script; otherwise it notes what the shell made of the line.
PROGRAM = """\
#!/bin/sh
if [ -n "$_COSTREAM_COMPLETE" ] || [ "$1" = completion ]; then
    exec "{python}" -m costream "$@"
fi
echo "$@" > typed
"""


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="needs a system with pseudo-terminals")
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_in_a_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    program = tmp_path / "bin" / "costream"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "clip.mp4").touch()
    arguments, script = SHELLS[shell]
    keys = "costream det\tcl\t--thresh\t0.5 -m coso\t-f csv,sr\t--model=oad\t"
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    env = environment({"PATH": path, "TERM": "dumb", "HOME": str(tmp_path)})
    lines = "".join(f"{line}\r" for line in (script, keys, "exit"))
    shown, _ = on_terminal([shell, *arguments], keys=lines, cwd=tmp_path, env=env)
    assert (tmp_path / "typed").is_file(), shown
    assert (tmp_path / "typed").read_text().split() == [
        *("detect", "clip.mp4", "--threshold", "0.5", "-m", "cosounds", "-f", "csv,srt"),
        "--model=oadtr",
    ]


def test_words_where_the_shell_asks(tmp_path: Path) -> None:
    """Also with a configuration that no command would take, without a word about it."""
    (tmp_path / "costream.toml").write_text("[broken")
    words = {
        "costream": {"demo", "detect", "completion"},
        "costream models": {"show", "verify"},
        "costream models show": {"cooadtr", "costgcn"},
        "costream detect -m cooadtr,costgcn -f": {"csv", "srt", "jsonl"},
        "costream detect --layout": {"ntu-25"},
        "costream report x -f": {"html", "png"},
        "costream help": {"watch", "skeletons", "index"},
    }
    for line, some in words.items():
        asked = {"COMP_WORDS": f"{line} ", "COMP_CWORD": str(len(line.split()))}
        done = costream(env={**asked, "_COSTREAM_COMPLETE": "bash_complete"}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert some <= {item.removeprefix("plain,") for item in done.stdout.splitlines()}
