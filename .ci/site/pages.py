"""Hooks of mkdocs: the manual of ``costream help``, the README, the API and llms.txt as a site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from costream.cli import COMMANDS  # noqa: E402
from costream.cli.help import manual, pages, render  # noqa: E402

PICTURE = re.compile(r"\((?:\.\./\.\./)?samples/([\w.-]+\.(?:svg|png))\)")
API = {
    "Runs": ("costream.api.runs", "detect listen read run RecordStream"),
    "Live feeds": ("costream.api.feeds", "watch FeedRecords"),
    "Streams": ("costream.api.streams", "load_model LoadedModel ModelStream"),
    "Results": ("costream.api.results", "Results"),
    "Sources": ("costream.sources.uris", "open_source"),
    "Records": (
        "costream.core.records",
        "Header Prediction Objects Segment Compute Gap Fault Alert Summary",
    ),
    "Errors": (
        "costream.core.errors",
        "CostreamError UsageError SourceError ModelError OutputError",
    ),
}


def on_config(config: Any) -> Any:
    """Set the navigation: every page of the manual is in it."""
    names = set(pages()) - {"index", "recipes", "migration", "python", "nn"}
    commands = [name for name in COMMANDS if name in names]
    config.nav = [
        "index.md",
        {"Start": ["recipes.md", "migration.md", "contents.md", "CHANGELOG.md"]},
        {"Commands": [f"{name}.md" for name in commands]},
        {"Subjects": [f"{name}.md" for name in sorted(names.difference(commands))]},
        {"Python": ["python.md", "nn.md", "api.md"]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures, and the pages that are not files of the manual."""
    for path in sorted((ROOT / "samples").iterdir()):
        if path.suffix in (".svg", ".png"):
            content = path.read_bytes()
            files.append(File.generated(config, f"samples/{path.name}", content=content))
    contents = pages()["index"].replace("# costream\n", "# Contents\n", 1)
    files.append(File.generated(config, "contents.md", content=contents))
    files.append(File.generated(config, "api.md", content=api()))
    for name in ("CHANGELOG.md", "LICENSE", "CITATION.cff"):
        content = (ROOT / name).read_bytes()
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with its tables; the first page is the README."""
    if page.file.src_uri in ("index.md", "CHANGELOG.md"):
        if page.file.src_uri == "index.md":
            markdown = (ROOT / "README.md").read_text("utf-8")
        markdown = re.sub(r"\]\(costream/manual/(\w+\.md(?:#[\w-]+)?)\)", r"](\1)", markdown)
        markdown = re.sub(r"\[([^]]+)\]\(CONTRIBUTING.md\)", r"\1", markdown)
    return PICTURE.sub(r"(samples/\1)", render(markdown))


def on_post_build(config: Any) -> None:
    """Write llms.txt, a list of the pages, and llms-full.txt, all of them."""
    heads = {name: text.split("\n\n")[:2] for name, text in pages().items()}
    _, about = heads.pop("index")
    full = "The complete manual as one text: [llms-full.txt](llms-full.txt)"
    lines = ["# costream", "", f"> {' '.join(about.split())}", "", full, "", "## Pages", ""]
    for name, (title, subject) in heads.items():
        lines.append(f"- [{title[2:]}]({name}.html): {' '.join(subject.split())}")
    folder = Path(config.site_dir)
    folder.joinpath("llms.txt").write_text("\n".join([*lines, ""]), "utf-8")
    folder.joinpath("llms-full.txt").write_text(manual() + "\n", "utf-8")


def api() -> str:
    """Return the page of the API reference; mkdocstrings fills it in from the docstrings."""
    parts = [
        "# API",
        "What `import costream` has, from its docstrings; [Python](python.md) shows its use.",
    ]
    for title, (module, names) in API.items():
        parts += [f"## {title}", *(f"::: {module}.{name}" for name in names.split())]
    return "\n\n".join(parts)
