"""What differs between the releases of PyAV."""

from __future__ import annotations

from typing import Any

import av
from av.container import InputContainer

# Up to version 18, a title that is not UTF-8 makes a file unreadable without this argument.
_RELEASE = int(av.__version__.partition(".")[0])
_TEXTS: dict[str, Any] = {"metadata_errors": "replace"} if _RELEASE < 19 else {}


def open_input(file: Any, **options: Any) -> InputContainer:
    """Return ``av.open(file, "r", **options)``, whatever the encoding of titles in it."""
    container: InputContainer = av.open(file, "r", **options, **_TEXTS)
    return container
