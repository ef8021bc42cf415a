"""HTML page around the content: one file that needs no network and no script."""

from __future__ import annotations

from importlib.resources import files

from costream.core.commit import code_version
from costream.report.markup import Html, join, tag, text
from costream.report.swatches import patterns

# The page must not load or run anything, whatever its content.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page_head(title: str) -> str:
    """Return everything before the content."""
    style = files("costream.report").joinpath("style.css").read_text("utf-8")
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=Html(_POLICY)),
        tag("meta", name="generator", content=f"costream {code_version()}"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Html(f"<style>\n{style}</style>"),
    )
    skip = tag("a", "Skip to the results", href="#main", class_="skip")
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body id="top">\n' + (
        f'{skip}{patterns()}<main id="main">\n'
    )


def page_foot(words: str = "") -> str:
    """Return everything after the content; ``words``: text of the footer, '': what made it."""
    words = words or f"Made by costream report {code_version()} from the results of the runs."
    return f"<footer>{text(words)}</footer>\n</main>\n</body>\n</html>\n"
