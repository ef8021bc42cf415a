"""``costream help``: the manual. Its tables are made from the code when a page is shown."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from costream.cli.click_command import Command, option_rows
from costream.core.errors import ExitCode, UsageError
from costream.core.schema import comments

MANUAL = Path(__file__).parent.parent / "manual"
_PLACEHOLDER = re.compile(r"^\{\{([a-z-]+) ?(.*?)\}\}$", re.MULTILINE)
_PICTURE = re.compile(r"^!\[.*\]\(.*\)\n\n", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\((\w+)\.md\)")
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "tuple": "array"}
_TYPES |= {"Seconds": "number", "Sum": "number", "Count": "integer"}
_TYPES |= {"FeedState": "string", "Kind": "string", "dict": "object"}


def _page_names(_: click.Context, __: click.Parameter, word: str) -> list[CompletionItem[str]]:
    """Return the pages that begin with what was typed."""
    return [CompletionItem(name) for name in pages() if name.startswith(word.lower())]


@click.command(cls=Command)
@click.argument("page", nargs=-1, shell_complete=_page_names)
@click.option(
    "--all", "every", is_flag=True, help="Show all pages as one text, for example for an assistant."
)
def command(page: tuple[str, ...], every: bool) -> None:
    """Show a page of the manual, or one of its sections; without PAGE the list of pages.

    On a terminal with UTF-8 through the pager, else as plain Markdown.

    \b
    costream help python
    costream help exit-codes
    costream help skeletons | less
    costream help --all > manual.md
    """
    if every and page:
        raise UsageError("--all shows every page", hint=f"leave out {' '.join(page)!r} or --all")
    text = manual() if every else _without_pictures(render(find("-".join(page).lower() or "index")))
    from costream.ui.console import is_unicode, stdout_console

    console = stdout_console()
    if not sys.stdout.isatty() or not is_unicode(console):
        click.echo(text)
        return
    from rich.markdown import Markdown
    from rich.theme import Theme

    # No backgrounds: the terminal may be dark or light.
    page_view = Markdown(_LINK.sub(r"`costream help \1`", text), code_theme="ansi_dark")
    with console.capture() as captured, console.use_theme(Theme({"markdown.code": "bold cyan"})):
        console.print(page_view, width=min(console.width, 100))
    click.echo_via_pager(captured.get())


def pages() -> dict[str, str]:
    """Return the pages of the manual as they are stored, by name; "index" is the first."""
    paths = sorted(MANUAL.glob("*.md"), key=lambda path: (path.stem != "index", path.stem))
    return {path.stem: path.read_text("utf-8") for path in paths}


def find(name: str) -> str:
    """Return the page or section of this name, or the only one whose name contains it.

    Raises UsageError if there is none, or more than one.
    """
    sections = pages()
    for text in list(sections.values()):
        for match in re.finditer(r"^(##+) (.+)$", text, re.MULTILINE):
            end = re.compile(rf"^#{{2,{len(match[1])}}} ", re.MULTILINE).search(text, match.end())
            section = text[match.start() : end.start() if end else None].strip()
            slug = re.sub(r"[^a-z0-9]+", "-", match[2].lower()).strip("-")
            sections.setdefault(slug, section)
    starts = [page for page in pages() if page.startswith(name)]
    words = [page for page in sections if f"-{name}-" in f"-{page}-"]
    for matches in (starts, words):
        if name not in sections and len(matches) == 1:
            name = matches[0]
    if name not in sections:
        close = words[:5] or difflib.get_close_matches(name, sections, 3, 0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else "'costream help' lists the pages"
        raise UsageError(f"there is no page {name!r}", hint=hint)
    return sections[name]


def manual() -> str:
    """Return all pages as one text, in the order of the list of pages."""
    return "\n\n".join(_without_pictures(render(text)).strip() for text in pages().values())


def _without_pictures(text: str) -> str:
    return _PICTURE.sub("", text)


def render(text: str) -> str:
    """Return Markdown with the tables that its placeholders, ``{{name argument}}``, stand for."""
    return _PLACEHOLDER.sub(lambda match: TABLES[match[1]](*match[2].split(maxsplit=0)), text)


def _table(heads: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in (heads, *rows)]
    cells.insert(1, ["---"] * len(heads))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _commands() -> str:
    from costream.cli import COMMANDS

    return _table(
        ("command", "what it does"), ((f"`{name}`", text) for name, (_, text) in COMMANDS.items())
    )


def _pages() -> str:
    rows = (
        (f"[{name}]({name}.md)", text.split("\n\n")[1].replace("\n", " "))
        for name, text in pages().items()
    )
    return _table(("page", "subject"), (row for row in rows if not row[0].startswith("[index]")))


def _options(name: str) -> str:
    """Return the options of a command (``models import``), as its ``--help`` shows them."""
    from costream.cli import cli

    found: click.Command | None = cli
    for part in name.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), part)
    assert found is not None
    tables = []
    sections = option_rows(found, click.Context(found))
    for heading, rows in sections.items():
        cells = ((f"`{names}`", " ".join(text.split())) for names, text in rows)
        title = "option" if len(sections) == 1 else heading
        tables.append(_table((title, "meaning"), cells))
    return "\n\n".join(tables)


def _fields(name: str) -> str:
    """Return the fields of a record, or of a status, in their JSON form."""
    from costream.core import records, status

    kind: Any = getattr(records, name, None) or vars(status)[name]
    about, rows = comments(kind), []
    for field in fields(kind):
        first = re.split(r"[\[ ]", str(field.type))[0]
        optional = field.default is None
        may = "None" in str(field.type) or "; null" in about[field.name]
        nullable = " or null" if may and field.default is MISSING else ""
        shown = f"`{field.name}`{'?' if optional else ''}"
        rows.append((shown, _TYPES.get(first, "object") + nullable, about[field.name]))
    return _table(("field", "type", "meaning"), rows)


def _feed_keys() -> str:
    """Return the keys of lists of feeds."""
    from costream.runtime.watch.feed_list import feed_keys

    return _table(("key", "meaning"), ((f"`{key}`", about) for key, about in feed_keys().items()))


def _formats() -> str:
    from costream.sinks.registry import FORMATS

    rows = []
    for name, made in FORMATS.items():
        files = ", ".join(f"`clip.mp4.{suffix}`" for suffix in made.files)
        rows.append((f"`{name}`", files, made.about))
    return _table(("`-f`", "files", "content"), rows)


def _layouts() -> str:
    from costream.core.layouts import LAYOUTS

    rows = ((f"`{name}`", len(it.joints), _joints(it.joints)) for name, it in LAYOUTS.items())
    return _table(("layout", "joints", "in this order"), rows)


def _joints(names: Sequence[str]) -> str:
    """Return names as text, "face 1, ..., face 68" of those that are only numbered."""
    stems = [name.rstrip("0123456789") for name in names]
    shown: list[str] = []
    for stem, same in groupby(zip(stems, names, strict=True), key=lambda pair: pair[0]):
        numbered = [name for _, name in same]
        several = len(numbered) > 1 and numbered[0] != stem
        shown += [numbered[0], "...", numbered[-1]] if several else numbered
    return ", ".join(shown)


def _markers() -> str:
    from costream.core.layouts import marker_sets

    sets = marker_sets().items()
    rows = ((f"`{name}`", len(it.joints), ", ".join(it.headings)) for name, it in sets)
    return _table(("layout", "joints", "names in files"), rows)


_PACKAGES = {"shipped": "shipped", "research": "shipped, for research"}


def _models() -> str:
    from costream.models.catalogue import list_models
    from costream.models.spec import model_summaries

    origins = {entry.name: entry.origin for entry in list_models()}
    shipped = {name: _PACKAGES.get(origins[name] or "", "") for name in model_summaries()}
    rows = ((f"`{name}`", shipped[name], text) for name, text in model_summaries().items())
    return _table(("`-m`", "weights", "task and network"), rows)


def _published() -> str:
    from costream.weights_io.licences import UNKNOWN
    from costream.weights_io.store import published

    rows = (
        (
            f"`{name}`",
            f"{each.total_megabytes:g}",
            each.licence,
            each.licence_class or UNKNOWN,
            each.source,
        )
        for name, each in published().items()
    )
    return _table(("name", "MB", "licence", "class", "source"), rows)


def _cards() -> str:
    """Return a row for each weight file of the package: labels, limits and licence."""
    from costream.weights_io.file import read_card
    from costream.weights_io.licences import licence_class
    from costream.weights_io.store import weight_folders

    folders = [folder for origin, folder in weight_folders() if origin in _PACKAGES]
    cards = [read_card(path) for each in folders for path in sorted(each.glob("*.safetensors"))]
    rows = (
        (f"`{it.name}`", it.description, it.limits, licence_class(it), it.licence) for it in cards
    )
    return _table(("model", "for", "limits", "class", "licence of the weights"), rows)


def _importers() -> str:
    from costream.weights_io.importer import IMPORTERS

    rows = ((f"`{name}`", each.info["summary"]) for name, each in IMPORTERS.entries().items())
    return _table(("`--as`", "checkpoints of"), rows)


def _import_keys() -> str:
    from costream.weights_io.import_settings import KEYS

    return _table(("key", "meaning", "values"), ((f"`{k}`", v[2], v[1]) for k, v in KEYS.items()))


def _exit_codes() -> str:
    about = comments(ExitCode)
    return _table(("code", "meaning"), ((int(code), about[code.name]) for code in ExitCode))


def _store() -> str:
    from costream.sinks.event_store import SCHEMA

    return f"```sql\n{SCHEMA[: SCHEMA.index('CREATE INDEX')].strip()}\n```"


TABLES: dict[str, Callable[..., str]] = {
    "cards": _cards,
    "commands": _commands,
    "exit-codes": _exit_codes,
    "feed-keys": _feed_keys,
    "fields": _fields,
    "formats": _formats,
    "import-keys": _import_keys,
    "importers": _importers,
    "layouts": _layouts,
    "markers": _markers,
    "models": _models,
    "options": _options,
    "pages": _pages,
    "published": _published,
    "store": _store,
}
