"""Media are opened alike with each release of PyAV."""

from __future__ import annotations

import re
import struct
import wave
from pathlib import Path

from costream.core.pyav import open_input
from kit.paths import ROOT


def test_a_title_in_another_encoding_makes_no_file_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "song.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(1600))
    title = b"INFOINAM" + struct.pack("<I", 4) + "café".encode("latin-1")
    content = path.read_bytes() + b"LIST" + struct.pack("<I", len(title)) + title
    path.write_bytes(b"RIFF" + struct.pack("<I", len(content) - 8) + content[8:])
    with open_input(str(path)) as container:
        assert container.metadata["title"].startswith("caf")
        assert sum(frame.samples for frame in container.decode(audio=0)) == 800


def test_media_are_read_through_it_only() -> None:
    for path in (ROOT / "costream").rglob("*.py"):
        for call in re.findall(
            r"\bav\.open\(([^()]*\(?[^()]*\)?[^()]*)\)", path.read_text("utf-8")
        ):
            assert path.name == "pyav.py" or '"w"' in call, f"{path.name}: {call}"
