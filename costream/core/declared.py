"""Values of files (cards, lists of feeds), checked against the class that declares them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")
MAX_NUMBER = 1e18  # of any number
Number = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=MAX_NUMBER)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]

_EXPECTED = re.compile(r"Expected `(?P<types>[^`]+)`(?P<limit>[^,]*)")
_TYPES = {
    "float": "a number",
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_LIMITS = {">": "above", ">=": "of at least", "<=": "of at most"}


def convert(values: Any, kind: type[T], secret: Container[str] = ()) -> T:
    """Return the value of a file as ``kind``, a dataclass, struct or typed dictionary.

    Raises ValueError that names the key and says what is expected there. ``secret``: keys whose
    values are not shown.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_explained(str(error), values, kind, secret)) from error


def _explained(message: str, values: Any, kind: type[Any], secret: Container[str]) -> str:
    """Return what msgspec found, as in: ``timeline.threshold 3 is not a number of at most 1``."""
    what, _, path = message.partition(" - at `$")
    path = path.rstrip("`").removeprefix(".").replace("[...]", "")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", what):
        return f"{'.'.join(filter(None, (path, missing[1])))} is missing"
    value = _value_at(path, values)
    key = re.split(r"[.\[]", path)[0]
    shown = path if key in secret else f"{path} {value!r:.80}".strip()
    return f"{shown} is not {_expected(what, key, kind)}"


def _value_at(path: str, values: Any) -> Any:
    """Return the value at a path such as ``sample.truth[2]``."""
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif isinstance(values, (list, tuple)) and part.isdigit():
            values = values[int(part)]
        else:
            break
    return values


def _expected(what: str, key: str, kind: type[Any]) -> str:
    """Return what a key expects, in words."""
    match = _EXPECTED.match(what)
    if match is None:
        choices = _choices(get_type_hints(kind).get(key.replace("-", "_")))
        return " or ".join(choices) if choices else "a number of usual size"
    words = [_TYPES.get(name, name) for name in match["types"].split(" | ") if name != "null"]
    expected = " or ".join(words)
    sign, _, limit = match["limit"].strip().rpartition(" ")
    if sign in _LIMITS and abs(float(limit)) == MAX_NUMBER:
        return f"{expected} of usual size"
    return f"{expected} {_LIMITS[sign]} {float(limit):g}" if sign in _LIMITS else expected


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the texts that a type allows, if it lists them."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    return tuple(choice for part in get_args(hint) for choice in _choices(part))
