"""Values of options: parsers of what users write. They raise UsageError."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from costream.core.clock import parse_time
from costream.core.errors import UsageError
from costream.core.places import Kind, Place, parse_place
from costream.core.records import RawAudioFormat

_MAX_STEP_RATE_HZ = 1000
_STREAM = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)?")
_TOKENS = re.compile(r"(?P<count>[0-9]+)|(?P<share>[0-9.]+)\s*%|>\s*(?P<change>[0-9.]+)")
ALL_TOKENS = "100%"
_RAW = re.compile(r"([a-z][a-z0-9]+):([0-9]+)(?::([0-9]+))?")


def seconds(value: object) -> float:
    """Return the seconds of ``62``, ``5s``, ``1h30m``, ``1:02`` or ``HH:MM:SS.mmm``."""
    return parse_time(str(value))


def positive_seconds(value: object) -> float:
    """Return the seconds of a time above zero."""
    limit_s = seconds(value)
    if limit_s == 0:
        raise UsageError("must be greater than 0")
    return limit_s


def number(value: object) -> float:
    """Return a finite number."""
    try:
        parsed = float(str(value))
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed):
        raise UsageError(f"{value!r:.40} is not a number")
    return parsed


def positive(value: object) -> float:
    """Return a finite number above zero."""
    parsed = number(value)
    if parsed <= 0:
        raise UsageError(f"{value} is not a positive number")
    return parsed


def step_rate(value: object) -> float:
    """Return a number of steps per second, at most 1000."""
    rate_hz = positive(value)
    if rate_hz > _MAX_STEP_RATE_HZ:
        raise UsageError(f"{rate_hz:g} is more than {_MAX_STEP_RATE_HZ}")
    return rate_hz


def token_limit(value: object) -> int | str:
    """Return the number of ``60``, else ``25%`` (of ``all``: 100%) or ``>0.5`` without spaces."""
    text = str(value).strip()
    text = ALL_TOKENS if text == "all" else text
    try:
        if match := _TOKENS.fullmatch(text):
            if match["count"] and int(text) >= 1:
                return int(text)
            if match["share"] and 0 < (percent := float(match["share"])) <= 100:
                return f"{percent:g}%"
            if match["change"]:
                return f">{float(match['change']):g}"
    except ValueError:
        pass
    hint = "write a number (60), a share (25%), a change ('>0.5') or all"
    raise UsageError(f"{text!r:.40} does not say which tokens to compute", hint=hint)


def token_limits(value: str) -> tuple[int | str, ...]:
    """Return the parts of ``30,25%,>0.5,all``, see ``token_limit``."""
    return tuple(token_limit(part.strip().lower()) for part in value.split(","))


def probability(value: object) -> float:
    """Return a probability above zero."""
    parsed = number(value)
    if not 0 < parsed <= 1:
        raise UsageError(f"{value} is not above 0 and at most 1")
    return parsed


def raw_format(value: str) -> RawAudioFormat:
    """Parse FORMAT:RATE[:CHANNELS]."""
    match = _RAW.fullmatch(value)
    if match is None or not int(match[2]) or match[3] == "0":
        raise UsageError(f"{value!r} is not FORMAT:RATE[:CHANNELS]")
    return RawAudioFormat(match[1], int(match[2]), int(match[3] or 1))


def parse_stream(value: object, where: str | None = None) -> str:
    """Return the number (from 1) or the size (``640x480``) that selects a video stream."""
    text = str(value).strip().lower()
    if not _STREAM.fullmatch(text):
        what = f"{value!r} is neither a number from 1 on nor a size such as 640x480"
        raise UsageError(what, where=where)
    return text


def job_count(value: object) -> int | None:
    """Parse a number of workers; None stands for auto."""
    text = str(value)
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is neither auto nor a positive integer")
    return int(text)


def parse_places(kind: Kind, texts: Iterable[str]) -> tuple[Place, ...]:
    """Return the places of an option, each NAME=X,Y X,Y ..."""
    return tuple(parse_place(text, kind, f"--{kind}") for text in texts)
