"""Comparison of text from users, files and file systems, which spell one word in several ways."""

from __future__ import annotations

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
