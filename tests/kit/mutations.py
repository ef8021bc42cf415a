"""Seeded mutations of files: bytes, text, and values of documents."""

from __future__ import annotations

import json
import random
import re
from typing import Any

NUMBERS = (
    *("0", "-1", "1e308", "-1e308", "1e-320", "NaN", "Infinity", "-Infinity", "1" + "0" * 400),
    *("9" * 19, "-9223372036854775809", "4294967296", "1.5", "0x10", "", "1_000", "१", "9" * 5000),
)
TEXTS = (
    *("", " ", "\0", "\n", "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "\u202eabc", "\ud800"),
    *("a" * 300_000, "a://b" * 20_000, "'", '"', "%s{0}", "=cmd|calc", "../../x", "é" * 255),
    *("http://user:word@host/x?token=word", "nan", "[" * 2000, "<a>&b;", ",", "\t", "#"),
)
BYTES = (
    *(b"\0", b"\xff", b"\x80", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\xff" * 8, b"\xef\xbb\xbf"),
    *(b"\x1b[2J", b"\r", b"\n", b"\xc2\x9b31m", b"(", b"\x86" * 40, b"R", b"b", b"." * 3),
)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return ``data`` with a few bytes changed, left out, repeated or put in, or cut off."""
    out = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(max(1, len(out)))
        size = chance.choice((1, 1, 4, 64))
        match chance.randrange(7):
            case 0:
                out[at : at + 1] = bytes([chance.randrange(256)])
            case 1 if out:
                out[min(at, len(out) - 1)] ^= 1 << chance.randrange(8)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size] * chance.choice((1, 1, 50))
            case 4 if chance.random() < 0.3:
                del out[at:]
            case _:
                out[at:at] = chance.choice(BYTES)
    return bytes(out)


def retold(text: str, chance: random.Random) -> bytes:
    """Return ``text`` with numbers, words or lines changed, in one encoding or another."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        found = list(re.finditer(chance.choice((r"-?\d+(\.\d+)?", r"\w+", r"(?m)^[^\n]*\n")), text))
        if not found:
            break
        place = chance.choice(found)
        word = chance.choice((*NUMBERS, *TEXTS))
        if place[0].endswith("\n"):
            word = chance.choice(("", place[0] * 2, word + "\n", place[0][: len(place[0]) // 2]))
        text = text[: place.start()] + word + text[place.end() :]
    encoding = chance.choice(("utf-16", "latin-1", *["utf-8"] * 10))
    return text.encode(encoding, "surrogatepass" if encoding == "utf-8" else "replace")


def revalued(value: Any, chance: random.Random, into: int = 0) -> Any:
    """Return a JSON value with a part of it, ``into`` deep at least, exchanged, or left out."""
    if isinstance(value, (dict, list)) and value and chance.random() < (1 if into else 0.75):
        out: Any = dict(value) if isinstance(value, dict) else list(value)
        key = chance.choice(list(out) if isinstance(out, dict) else range(len(out)))
        if chance.random() < 0.1:
            del out[key]
        elif isinstance(out, dict) and chance.random() < 0.05:
            out[chance.choice(TEXTS)] = out.pop(key)
        else:
            out[key] = revalued(out[key], chance, max(0, into - 1))
        return out
    if isinstance(value, list) and value and chance.random() < 0.2:
        return value * chance.choice((2, 500))
    return chance.choice((None, True, -1, 0, 1.5, [], {}, [value], {"a": value}, *_scalars()))


def _scalars() -> list[Any]:
    return [1e308, -1e308, 1e-320, 10**400, 2**63, float("nan"), float("inf"), *TEXTS]


def document(value: Any, chance: random.Random, into: int = 0) -> bytes:
    """Return a JSON document of ``value`` with a part changed."""
    changed = value
    for _ in range(chance.choice((1, 1, 2, 3))):
        changed = revalued(changed, chance, into)
    text = json.dumps(changed)
    if chance.random() < 0.03:
        text = "[" * 100_000 + text
    return text.encode()
