"""Recordings in a folder for each class."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from costream.core.errors import SourceError, UsageError
from costream.core.spelling import composed
from costream.labels.collector import abbreviate
from costream.labels.recording import Label, Recording
from costream.sources.uris import expand

log = logging.getLogger("costream")


def read_classes(data: Path) -> Iterator[Recording]:
    """Yield the recordings in the folder of each class, in order of names.

    Raises UsageError for a class without recordings, and for files next to the folders.
    """
    inside = [path for path in sorted(data.iterdir()) if not path.name.startswith(".")]
    classes = [path for path in inside if path.is_dir()]
    stray = [path.name for path in inside if not path.is_dir()]
    if stray and classes:
        raise UsageError(
            f"files next to the class folders: {abbreviate(stray)}",
            where=data,
            hint="move each into the folder of its class",
        )
    for folder in classes:
        files = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        if not files:
            raise UsageError("a class without recordings", where=folder)
        for file in files:
            for source in _sources(file):
                label = Label(0.0, None, composed(folder.name), source)
                yield Recording(source, (label,), str(file), False, None)


def _sources(file: Path) -> list[str]:
    """Return the sources in a file, or in a folder of keypoints; UsageError for another folder.

    What cannot be used is a source, too: reading it reports why.
    """
    try:
        return expand(str(file))
    except SourceError as error:
        if not file.is_dir():
            return [str(file)]
        hint = "move its recordings into the folder of their class"
        raise UsageError("a folder inside the folder of a class", where=file, hint=hint) from error
