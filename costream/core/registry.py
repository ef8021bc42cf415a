"""Registries: named objects, declared by a decorator in the file that implements them.

``@register_model("miniroad", summary=...)`` above a class adds it. The names of a folder are read
from the source text of its files, so that listing them imports nothing; a file is imported when
one of its names is asked for. Code outside the package adds names by running the same decorator.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered name.

    ``info`` holds the keyword arguments of the decorator: all of them once the module is imported,
    before that only those that are literals. ``target`` is None before the import.
    """

    name: str
    module: str
    info: Mapping[str, Any] = field(default_factory=dict)
    target: T | None = None


class Registry(Generic[T]):
    """Named objects of a folder of the package, and those that others add.

    ``package``: dotted name of the folder whose files (subfolders included) are searched.
    ``decorator``: the name under which those files call ``register``, at the start of a line. The
    keyword ``order``, a number, sorts the entries of the folder.
    """

    def __init__(self, package: str, decorator: str) -> None:
        self.package, self.decorator = package, decorator
        self._added: dict[str, Entry[T]] = {}

    def register(self, name: str, **info: Any) -> Callable[[S], S]:
        """Return a decorator that adds what it decorates under ``name``, replacing what was there.

        One object may have several names.
        """

        def add(target: S) -> S:
            module = getattr(target, "__module__", "")
            self._added[name] = Entry(name, module, info, cast(T, target))
            return target

        return add

    @contextmanager
    def temporarily(self) -> Iterator[None]:
        """Forget, at the end of the block, the names that were registered within it."""
        before = dict(self._added)
        try:
            yield
        finally:
            self._added = before

    def entries(self) -> dict[str, Entry[T]]:
        """Return all entries by name, those of the package first, without importing anything."""
        return {**self._declared, **self._added}

    def get(self, name: str) -> Entry[T]:
        """Return an entry with its target, importing its module. Raise KeyError if unknown."""
        if name not in self._added:
            import_module(self._declared[name].module)
        return self._added[name]

    def load(self, name: str) -> T:
        """Return the object of a name, importing its module. Raises KeyError if unknown."""
        return cast(T, self.get(name).target)

    def __contains__(self, name: object) -> bool:
        return name in self._added or name in self._declared

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries())

    @cached_property
    def _declared(self) -> dict[str, Entry[T]]:
        spec = find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"no package {self.package!r}")
        entries = []
        marker = f"@{self.decorator}(".encode()
        for root in spec.submodule_search_locations:
            for folder, _, files in os.walk(root):
                for file in files:
                    path = os.path.join(folder, file)
                    if not file.endswith(".py") or marker not in (source := _read(path)):
                        continue  # most files have none, and this is the fastest way to know
                    parts = os.path.relpath(path, root).removesuffix(".py").split(os.sep)
                    module = ".".join((self.package, *parts)).removesuffix(".__init__")
                    for name, info in declarations(source.decode(), self.decorator):
                        entries.append(Entry[T](name, module, info))
        entries.sort(key=lambda entry: (entry.info.get("order", 99), entry.module))
        return {entry.name: entry for entry in entries}


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def declarations(source: str, decorator: str) -> list[tuple[str, dict[str, Any]]]:
    """Return name and literal keyword arguments of each ``@decorator(...)`` of a source text."""
    declared: list[tuple[str, dict[str, Any]]] = []
    for match in re.finditer(rf"^@{re.escape(decorator)}\(", source, re.MULTILINE):
        call = _call(source[match.start() + 1 :])
        info = {}
        for keyword in call.keywords:
            try:
                info[str(keyword.arg)] = ast.literal_eval(keyword.value)
            except ValueError:  # computed: available after the import
                continue
        declared.append((ast.literal_eval(call.args[0]), info))
    return declared


def _call(source: str) -> ast.Call:
    """Return the call at the start of a source text: up to the first parenthesis that ends it."""
    for match in re.finditer(r"\)[ \t]*(#.*)?$", source, re.MULTILINE):
        try:
            tree = ast.parse(source[: match.end()], mode="eval")
        except SyntaxError:
            continue
        if isinstance(tree.body, ast.Call):
            return tree.body
    raise SyntaxError("a decorator that does not end")
