"""The files that a watch writes the records of its feeds to."""

from __future__ import annotations

import sys
from pathlib import Path

from costream.options.options import Options
from costream.sinks.atomic import StreamOutput
from costream.sinks.base import Sink
from costream.sinks.event_store import EventStore
from costream.sinks.journal import Journal
from costream.sinks.jsonl import JsonLines
from costream.sinks.rotation import Rotation
from costream.sinks.written_part import WrittenPart


def file_sinks(options: Options, feed: str) -> list[Sink]:
    """Return the sinks for the records of a feed: its file, or standard output, and the store."""
    output, folder, pictures = options.output, options.output_folder, options.snapshot_folder
    stored = options.db is not None and folder is None  # a file that is not rotated is not deleted
    rotation = Rotation.parse(options.rotate, options.keep, stored=stored)
    sinks: list[Sink] = []
    if folder is not None:
        sinks.append(Journal(folder, feed, rotation, pictures=pictures))
    elif output == "-":
        sinks.append(JsonLines(StreamOutput(sys.stdout), feed=feed))
    part = options.write or ("all" if output == "-" else "events")
    if part != "all":
        sinks = [WrittenPart(sink, part) for sink in sinks]
    if options.db is not None:
        store = EventStore(
            Path(options.db), feed, folder=folder, pictures=pictures, rotation=rotation
        )
        sinks.append(store)
    return sinks
