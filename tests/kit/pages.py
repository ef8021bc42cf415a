"""Reads a page like a strict browser: balanced tags, what is linked, what is said."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"img", "meta", "br", "link"}


class Page(HTMLParser):
    """The tags, links and words of a page. Raises AssertionError for tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}: {attrs}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def values(self, attribute: str) -> list[str]:
        return [found[attribute] or "" for _, found in self.tags if attribute in found]

    def count(self, tag: str, class_: str | None = None) -> int:
        return sum(
            name == tag and (class_ is None or class_ in (found.get("class") or "").split())
            for name, found in self.tags
        )
