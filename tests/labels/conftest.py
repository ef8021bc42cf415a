"""Timelines as costream writes them, and recordings that are only a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from costream.core.records import Header, Segment, Summary
from costream.sinks.registry import make_sinks

SUMMARY = Summary(0, 0, 0, 0, 60.0, 1.0, 60.0, 0, 0, complete=True, exit=0)


def header(source: str, **about: Any) -> Header:
    fixed = {"version": "0", "model": "m", "weights_sha256": "", "background": None}
    rest = {"rate_hz": 4.0, "delay_s": 0.0, "kind": "video", "duration_s": 60.0, "options": {}}
    return Header(**{**fixed, **rest, "labels": (), "source": source, **about})


def write(
    formats: Sequence[str], folder: Path, name: str, segments: Sequence[Segment], **about: Any
) -> None:
    """Write segments as a run over ``name`` writes them, into the files of every format."""
    for sink in make_sinks(formats, folder, name, overwrite=True):
        sink.open(header(about.pop("source", name), **about))
        for segment in segments:
            sink.write(segment)
        sink.close(SUMMARY)


@pytest.fixture
def written() -> Any:
    return write
