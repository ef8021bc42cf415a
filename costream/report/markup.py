"""HTML and SVG from values. All that is not ``Html`` is escaped: labels and names are data."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

# Joiners, needed by some scripts and emoji; other invisible characters could reverse a line or
# hide text.
_JOINERS = "\u200c\u200d"
_VOID = {"img", "meta", "br", "link"}
_SELF_CLOSING = {"rect", "path", "line", "circle", "use"}
Child: TypeAlias = "str | Iterable[Html] | None"


class Html(str):
    """Text that is markup."""

    __slots__ = ()


def text(value: str) -> Html:
    """Return ``value`` escaped, on one line, without invisible characters."""
    if value.isprintable():  # the usual case; curves are long
        return Html(html.escape(value, quote=True))
    line = "".join(" " if c.isspace() else c for c in value)
    shown = "".join(c if c.isprintable() or c in _JOINERS else "\ufffd" for c in line)
    return Html(html.escape(shown, quote=True))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element.

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
    """Return the children, concatenated."""
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
    """Return a label or file name, isolated from the text direction around it."""
    return tag("bdi", value)


def note(words: str) -> Html | None:
    """Return a remark in small letters; None if there is nothing to say."""
    return tag("p", words, class_="note") if words else None


def unlisted(count: int) -> Html | None:
    """Return the remark that ``count`` more are not listed; None if there are none."""
    return note(f"{count:,} more are not listed." if count > 0 else "")


def folded(words: str, inner: Html) -> Html:
    """Return content that is shown on demand, under ``words``."""
    return tag("details", tag("summary", words), inner)


def percent(share: float) -> str:
    """Return a share of 1 in per cent."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
