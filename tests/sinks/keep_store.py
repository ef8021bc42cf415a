"""Writes events to a journal and a store until it is killed; see test_event_store."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from costream.core.clock import utc
from costream.core.records import Gap, Header, Segment
from costream.sinks.event_store import EventStore
from costream.sinks.journal import Journal
from costream.sinks.rotation import Rotation

HEADER = Header("0", "m", "0" * 64, ("a",), None, 10.0, 0.0, "rtsp://x", "video", None, {})


def for_ever(directory: str, feed: str, began_s: str) -> None:
    folder = Path(directory)
    sinks = (
        Journal(folder, feed, Rotation(size=20_000)),
        EventStore(folder / "events.sqlite", feed, folder=folder),
    )
    for sink in sinks:
        sink.open(replace(HEADER, began=utc(float(began_s))))
    i = 0
    while True:
        record = Gap(i, i + 0.5, "no data") if i % 3 == 0 else Segment(i, i + 0.5, "a", 0.9)
        for sink in sinks:
            sink.write(record)
        i += 1
        if i % 20 == 0:
            print(i, flush=True)


if __name__ == "__main__":
    for_ever(*sys.argv[1:])
