"""What other users of the machine see of the arguments of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kit.program import start
from kit.runs import wait_until


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_passwords_on_the_command_line_are_hidden_from_other_users(tmp_path: Path) -> None:
    url = "rtsp://viewer:gehe%40im@127.0.0.1:9/live?token=abcdef&channel=2"
    child = start("watch", url, "-m", "cooadtr", "-o", tmp_path / "log", "-q")
    seen = Path(f"/proc/{child.pid}/cmdline")
    wait_until(
        lambda: b"channel=2" in seen.read_bytes() and b"gehe" not in seen.read_bytes(), child
    )
    words = [word.rstrip() for word in seen.read_bytes().decode().split("\0")]
    child.terminate()
    child.communicate(timeout=60)
    assert words[words.index("watch") + 1 :] == [
        *("rtsp://***@127.0.0.1:9/live?token=***&channel=2", "-m", "cooadtr"),
        *("-o", str(tmp_path / "log"), "-q", ""),
    ]
