"""Table of published checkpoints: their addresses, licences, digests and import settings.

``weights/published.toml`` is part of costream; its header documents the keys. Reading it does not
need torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from costream.core.errors import ModelError
from costream.core.settings import read_toml
from costream.weights_io.card import LicenceClass
from costream.weights_io.licences import CLASSES, class_of

FILE = "published.toml"
NO_LICENCE = "NOASSERTION"
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "url": str,
    "megabytes": (int, float),
    "licence": str,
    "source": str,
}
_OPTIONAL: dict[str, type | tuple[type, ...]] = {
    "by_hand": str,
    "import": dict,
    "note": str,
    "check": dict,
    "task": str,
    "also": list,
    "class": str,
    "classes": int,
}
_LONGEST_NAME = 200  # bytes; with what is added to it, 255
_DIGESTS = ("sha256", "sha256_prefix", "md5_prefix")


@dataclass(frozen=True)
class Published:
    """A checkpoint that can be downloaded."""

    name: str
    url: str
    megabytes: float  # approximately
    licence: str  # SPDX identifier, or NO_LICENCE
    source: str  # its authors
    algorithm: str | None = None  # of hashlib; None: its authors publish no digest
    digest: str = ""  # the beginning of the file's hexadecimal digest
    # settings of its import, see ``weights_io.import_settings``; None: not a model by itself
    config: Mapping[str, str] | None = field(default_factory=dict)
    note: str = ""
    # known sound (``models.verify.KNOWN_SOUNDS``) -> a label among its ten best; empty: unchecked
    check: Mapping[str, str] = field(default_factory=dict)
    by_hand: str | None = None  # the file to download from a page that only a browser opens
    task: str = ""  # as in the card of what is imported; empty: not a model by itself
    also: tuple[Published, ...] = ()  # further files of one model: streams of skeletons
    licence_class: LicenceClass | None = None  # what the weights may be used for; None: unknown
    classes: int = 0  # number of its labels; 0: not known

    @property
    def total_megabytes(self) -> float:
        """About the size of all its files."""
        return self.megabytes + sum(part.megabytes for part in self.also)

    @property
    def file(self) -> str:
        """Its file name."""
        return self.by_hand or PurePosixPath(urlsplit(self.url).path).name


def read_published(path: Path) -> dict[str, Published]:
    """Return the entries of a table by name, in the order of the file.

    Raises ModelError, which names file and entry, when it cannot be read or is invalid.
    """
    tables = read_toml(path, "there is no such table of checkpoints", ModelError)
    return {name: _entry(name, table, f"{path}: [{name}]") for name, table in tables.items()}


def _entry(name: str, table: Any, where: str) -> Published:
    if not isinstance(table, dict):
        raise ModelError("not a table", where=where)
    if not _is_file_name(name):
        raise ModelError("not a valid file name", where=where)
    for key in _REQUIRED.keys() - table.keys():
        raise ModelError(f"missing key {key!r}", where=where)
    kinds = {**_REQUIRED, **_OPTIONAL, **dict.fromkeys(_DIGESTS, str)}
    for key, value in table.items():
        if key not in kinds:
            raise ModelError(f"unknown key {key!r}", where=where, hint=f"known: {_list(kinds)}")
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise ModelError(f"{key} is invalid: {value!r}", where=where)
    if not _is_http(table["url"]):
        raise ModelError(f"url is {table['url']!r}: not an HTTP address", where=where)
    if not 0 < table["megabytes"] < 1e9:
        raise ModelError(f"megabytes is invalid: {table['megabytes']}", where=where)
    algorithm, digest = _digest(table, where)
    pairs = table.get("import")
    entry = Published(
        name,
        table["url"],
        table["megabytes"],
        table["licence"],
        table["source"],
        algorithm,
        digest,
        None if pairs is None else {key: str(value) for key, value in pairs.items()},
        table.get("note", ""),
        {key: str(value) for key, value in table.get("check", {}).items()},
        table.get("by_hand"),
        table.get("task", ""),
        tuple(_part(name, table, part, where) for part in table.get("also", ())),
        _licence_class(table, where),
        table.get("classes", 0),
    )
    if not _is_file_name(entry.file):
        raise ModelError(f"url is {entry.url!r}: not the address of a file", where=where)
    return entry


def _licence_class(table: dict[str, Any], where: str) -> LicenceClass | None:
    """Return what the weights of an entry may be used for; its licence says it if no key does."""
    name = table.get("class")
    if name is not None and name not in CLASSES:
        raise ModelError(f"class is {name!r}", where=where, hint=f"known: {_list(CLASSES)}")
    found: LicenceClass | None = name or class_of(table["licence"])
    return found


def _part(name: str, entry: dict[str, Any], part: Any, where: str) -> Published:
    """Return a further file of an entry, a table with a ``url`` and a digest."""
    if not isinstance(part, dict) or part.keys() - {"url", *_DIGESTS}:
        raise ModelError(f"also is invalid: {part!r}", where=where, hint="known: url, sha256")
    shared = {key: entry[key] for key in ("megabytes", "licence", "source")}
    return _entry(name, {**shared, **part}, where)


def _digest(table: dict[str, Any], where: str) -> tuple[str | None, str]:
    keys = [key for key in _DIGESTS if key in table]
    if not keys:
        return None, ""
    key, digest = keys[0], table[keys[0]].lower()
    digits = {"sha256": 64, "sha256_prefix": 64, "md5_prefix": 32}[key]
    fits = len(digest) == digits if key == "sha256" else 0 < len(digest) <= digits
    if len(keys) > 1 or not fits or set(digest) - set("0123456789abcdef"):
        raise ModelError(f"{_list(keys)}: not the digest of a file", where=where)
    return key.removesuffix("_prefix"), digest


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and " " not in url
    except ValueError:  # a single bracket
        return False


def _is_file_name(name: str) -> bool:
    fits = 0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
    return fits and name.isprintable() and name[0] != "." and not set(name) & set("/\\,:")


def _list(words: Any) -> str:
    return ", ".join(words)
