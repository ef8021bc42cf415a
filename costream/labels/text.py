"""Text files of all platforms: detection of the encoding, uniform line endings."""

from __future__ import annotations

import codecs
from pathlib import Path

from costream.errors import UsageError


def read_text(path: Path) -> str:
    r"""Return a UTF-8 or UTF-16 text with \n line endings and without a byte order mark.

    Raises UsageError when it cannot be read or has another encoding.
    """
    try:
        data = path.read_bytes()
        text = data.decode(_encoding(data))
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=path) from error
    except UnicodeDecodeError as error:
        raise UsageError("is not text in UTF-8", where=path, hint="save it as UTF-8") from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _encoding(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without a byte order mark: the text begins in ASCII, so every other byte is zero.
    if data[1:2] == b"\0":
        return "utf-16-le"
    return "utf-16-be" if data[:1] == b"\0" else "utf-8"
