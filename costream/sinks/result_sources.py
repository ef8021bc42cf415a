"""The source of results, where it is still a file."""

from __future__ import annotations

from pathlib import Path

from costream.core.records import Header


def source_file(header: Header, result: Path) -> Path | None:
    """Return the source of results: the file of that name, or in the folder of the results.

    None if there is neither.
    """
    for path in (Path(header.source), result.parent / Path(header.source).name):
        try:
            if path.is_file():  # never a pipe or a device: reading those may block forever
                return path
        except (OSError, ValueError):
            continue
    return None
