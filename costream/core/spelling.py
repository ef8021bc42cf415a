"""Comparison of text from users, files and file systems, which spell one word in several ways."""

from __future__ import annotations

import os
import unicodedata


def composed(text: str) -> str:
    """Return text with accents in one form (Unicode NFC); macOS and some tools have others."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Return text for comparisons in which neither case nor the form of accents matters."""
    if text.isascii():
        return text.lower()
    # Folding takes characters apart, and joins none; some are folded only in their parts.
    return composed(unicodedata.normalize("NFD", text).casefold())


def stored_path(path: str) -> str:
    """Return a path with accents in the form that the file system has; FILE#NAME as well.

    Where there is no file of exactly this name, it is the one that alone has it in another form.
    What is not found stays as it is.
    """
    if path.isascii() or os.path.lexists(path):
        return path
    found, rest = os.path.splitdrive(path)
    for part in rest.split(os.sep):
        found += _stored_name(found or os.curdir, part) if part else ""
        found += os.sep
    found = found.removesuffix(os.sep)
    at = -1
    while not os.path.lexists(found) and (at := path.find("#", at + 1)) >= 0:
        file = stored_path(path[:at])
        if os.path.isfile(file):
            return file + path[at:]
    return found


def _stored_name(folder: str, name: str) -> str:
    """Return the name in a folder that is this one but for the form of accents."""
    if name.isascii() or os.path.lexists(os.path.join(folder, name)):
        return name
    try:
        same = [other for other in os.listdir(folder) if composed(other) == composed(name)]
    except (OSError, ValueError):
        return name
    return same[0] if len(same) == 1 else name
