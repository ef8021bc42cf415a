from __future__ import annotations

from pathlib import Path

import pytest

from costream.runtime import setup


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ("flags\t\t: fpu avx2 avx512f amx_bf16 amx_tile\n", True),
        ("processor: 0\nflags : fpu avx512f avx512_bf16\n", False),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx2 avx512f\nbugs : bf16\n", False),
        ("", False),
        (None, False),
    ],
)
def test_fast_bfloat16_is_read_off_the_processors_flags(
    text: str | None, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_CPU", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert setup.has_fast_bfloat16() is fast
