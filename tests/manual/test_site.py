"""The site that is made of the manual: it builds without warnings, and all of its links work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from costream.cli.help import pages
from kit.browser import browse, console, needs_browser
from kit.program import ROOT, costream, environment

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not all(map(find_spec, ("mkdocs", "material", "mkdocstrings"))),
        reason="needs the group 'site': pip install --group site",
    ),
]


class Links(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)]
    done = subprocess.run(
        [*command, "-f", str(ROOT / ".ci" / "site" / "mkdocs.yml")],
        env={**environment(), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr  # --strict: a warning is an error
    return folder


def test_every_page_is_there_with_its_tables(site: Path) -> None:
    for name in (*pages(), "contents", "api"):
        text = (site / f"{name}.html").read_text("utf-8")
        assert "{{" not in re.sub(r"<(script|pre|code).*?</\1>", "", text, flags=re.DOTALL), name
    assert "<code>--threshold" in (site / "detect.html").read_text("utf-8")
    assert "to_dataframe" in (site / "api.html").read_text("utf-8")


def test_every_link_leads_somewhere(site: Path) -> None:
    found = {path: Links(path) for path in site.rglob("*.html")}
    assert len(found) > 20
    for path, page in found.items():
        if path.name == "404.html":  # its links begin at the address of the site
            continue
        for link in (*page.links, *page.loaded):
            if urlsplit(link).scheme in ("http", "https", "mailto", "data"):
                continue
            file, anchor = urldefrag(unquote(link))
            target = Path(os.path.normpath(path.parent / file)) if file else path
            assert target.is_file(), f"{path.name}: {link}"
            assert not anchor or anchor in found[target].anchors, f"{path.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = Links(path).loaded
        assert not [url for url in loaded if urlsplit(url).scheme not in ("", "data")], path.name
    for path in site.rglob("*.css"):
        text = path.read_text("utf-8")
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", text), path.name


def test_texts_for_assistants(site: Path) -> None:
    text = (site / "llms.txt").read_text("utf-8")
    assert text.startswith("# costream\n\n> ")
    for link in re.findall(r"\]\((.+?)\)", text):
        assert (site / link).is_file()
    assert (site / "llms-full.txt").read_text("utf-8") == costream("help", "--all").stdout


@needs_browser
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", ["index", "recipes", "detect", "api"])
def test_pages_are_not_wider_than_their_window(
    site: Path, name: str, width: int, tmp_path: Path
) -> None:
    frame = tmp_path / "frame.html"
    measure = "document.title = f.contentDocument.documentElement.scrollWidth"
    frame.write_text(
        f'<!DOCTYPE html><title>none</title><iframe id="f" style="width:{width}px;height:900px;'
        f'border:0" src="{(site / name).as_uri()}.html" onload="{measure}"></iframe>'
    )
    waiting = ("--virtual-time-budget=10000", "--window-size=1500,900", "--dump-dom")
    done = browse(frame, tmp_path / "profile", *waiting, "--allow-file-access-from-files")
    assert f"<title>{width}<" in done.stdout
    logged = [line for line in console(done) if "search_index" not in line]  # it needs a server
    assert not [line for line in logged if "Error" in line]
