"""Text output of ``costream evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costream.evaluation.cliptext import clip_tables
from costream.evaluation.objecttext import object_tables
from costream.evaluation.recordingtext import recording_tables
from costream.tables import Table


def to_text(result: dict[str, Any]) -> str:
    """Return the metrics as text tables."""
    tables: Sequence[Table]
    if "budgets" in result:
        tables = object_tables(result)
    elif "recordings" in result:
        tables = recording_tables(result)
    else:
        tables = clip_tables(result)
    return "\n\n".join(table.to_text() for table in tables)
