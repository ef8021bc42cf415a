"""Label formats: which channel and file they name, and scores that are not numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costream.records import Segment
from costream.sinks.registry import make_sinks, paths_for


def written(run: Any, folder: Path, format: str, **about: Any) -> list[list[str]]:
    """Write two segments and return the fields of their lines."""
    (sink,) = make_sinks([format], folder, "x")
    sink.open(replace(run.header, **about))
    sink.write(Segment(1.0, 2.5, "a  b\tc", 0.25))
    sink.write(Segment(3.0, 4.0, " ", math.nan))
    sink.close(run.summary)
    (path,) = paths_for(format, folder, "x")
    lines = path.read_text("utf-8").split("\n")[:-1]
    return [line.split("\t" if format == "raven" else " ") for line in lines[-2:]]


@pytest.mark.parametrize(("channel", "shown"), [(None, "1"), (1, "1"), (2, "2")])
@pytest.mark.parametrize("format", ["raven", "rttm"])
def test_the_channel_is_the_one_that_was_heard(
    format: str, channel: int | None, shown: str, run: Any, tmp_path: Path
) -> None:
    rows = written(run, tmp_path, format, options={"channel": channel})
    assert {row[2] for row in rows} == {shown}


def test_raven_names_the_file_and_numbers_its_rows(run: Any, tmp_path: Path) -> None:
    rows = written(run, tmp_path, "raven", source="al bum/a  b.tar.flac")
    assert [row[0] for row in rows] == ["1", "2"]
    assert {row[3] for row in rows} == {"a b.tar.flac"}
    assert [row[8:] for row in rows] == [["a b c", "0.250000"], ["", ""]]


def test_rttm_has_no_blanks_and_no_empty_fields(run: Any, tmp_path: Path) -> None:
    rows = written(run, tmp_path, "rttm", source="al bum/a  b.tar.flac")
    nothing = "<NA>"
    assert rows == [
        f"SPEAKER a_b.tar 1 1.000000 1.500000 {nothing} {nothing} a_b_c 0.250000 {nothing}".split(),
        ["SPEAKER", "a_b.tar", "1", "3.000000", "1.000000", *5 * [nothing]],
    ]
