"""Recordings in folders named after their class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from costream.errors import UsageError
from costream.labels.intake import abbreviate
from costream.labels.recording import Label, Recording
from costream.sources.registry import expand


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
            for source in expand(str(file)):
                label = Label(0.0, None, folder.name, source)
                yield Recording(source, (label,), str(file), False, None)
