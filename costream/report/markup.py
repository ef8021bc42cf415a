"""HTML and SVG from values. What is not ``Html`` already is escaped: labels and names are data."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

# Joiners that letters of some scripts, and emoji, are made with; other invisible characters
# could turn a line around or hide what follows.
_JOINERS = "\u200c\u200d"
_VOID = {"img", "meta", "br", "link"}
_SELF_CLOSING = {"rect", "path", "line", "circle", "use"}


class Html(str):
    """Text that is markup."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[Html] | None"


def text(value: str) -> Html:
    """Give ``value`` as it is to be read: escaped, on one line, without invisible characters."""
    if value.isprintable():  # as a rule; curves are long
        return Html(html.escape(value, quote=True))
    line = "".join(" " if c.isspace() else c for c in value)
    shown = "".join(c if c.isprintable() or c in _JOINERS else "\ufffd" for c in line)
    return Html(html.escape(shown, quote=True))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Give an element.

    Of attribute names, ``_`` at the end is dropped and other ``_`` become ``-``; those that are
    None or False are left out, True has no value.
    """
    parts = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{value if isinstance(value, Html) else text(str(value))}"')
    opening = " ".join(parts)
    if name in _VOID:
        return Html(f"<{opening}>")
    inner = join(*children)
    if not inner and name in _SELF_CLOSING:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{inner}</{name}>")


def join(*children: Child) -> Html:
    """Give the children one after the other."""
    out: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            out.append(child)
        elif isinstance(child, str):
            out.append(text(child))
        else:
            out.extend(child)
    return Html("".join(out))


def name(value: str) -> Html:
    """Give a label or file name apart from the direction of the writing around it."""
    return tag("bdi", value)


def percent(share: float) -> str:
    """Give a share of 1 as a length in per cent."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
