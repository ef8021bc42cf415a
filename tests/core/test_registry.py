"""Registry: names read from source text, import on request, names added from outside."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from costream.core.registry import Registry, declarations

BASE = """
from costream.core.registry import Registry
REGISTRY = Registry("zoo", "register")
register = REGISTRY.register
"""
ONE = """
from zoo.base import register

@register("lynx", order=2, legs=2 + 2)  # a comment (of any kind)
@register(
    "cat",
    summary="a (small) cat",
    order=1,
    arguments={"sizes": (1, 2)},
)
class Cat: pass
"""
TWO = """
raise RuntimeError("not to be imported")

@register("ghost", order=3)
def ghost(): pass

@register_other("other")
class Other: pass
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Any]]:
    """The registry of a package 'zoo' of two files that register names."""
    folder = tmp_path / "zoo"
    (folder / "deep").mkdir(parents=True)
    for name, text in (("base", BASE), ("one", ONE), ("deep/two", TWO)):
        (folder / f"{name}.py").write_text(text)
    for package in (folder, folder / "deep"):
        (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import zoo.base  # type: ignore[import-not-found]

    yield zoo.base.REGISTRY
    for module in [name for name in sys.modules if name.split(".")[0] == "zoo"]:
        del sys.modules[module]


def test_names_and_literals_are_read_without_an_import(registry: Registry[Any]) -> None:
    entries = registry.entries()
    assert list(entries) == list(registry) == ["cat", "lynx", "ghost"]
    assert entries["cat"].module == "zoo.one"
    assert entries["ghost"].module == "zoo.deep.two"
    info = {"summary": "a (small) cat", "order": 1, "arguments": {"sizes": (1, 2)}}
    assert entries["cat"].info == info
    assert entries["lynx"].info == {"order": 2}
    assert entries["cat"].target is None
    assert "cat" in registry
    assert "dog" not in registry
    assert "zoo.one" not in sys.modules


def test_an_entry_is_imported_when_it_is_asked_for(registry: Registry[Any]) -> None:
    entry = registry.get("lynx")
    assert entry.target is not None
    assert entry.target is registry.load("cat")
    assert entry.target.__name__ == "Cat"
    assert entry.info["legs"] == 4
    assert list(registry) == ["cat", "lynx", "ghost"]  # an import changes no order
    with pytest.raises(RuntimeError, match="not to be imported"):
        registry.get("ghost")
    with pytest.raises(KeyError):
        registry.get("dog")


def test_code_outside_adds_and_replaces_names(registry: Registry[Any]) -> None:
    dog = registry.register("dog", legs=4)(SimpleNamespace())
    assert list(registry) == ["cat", "lynx", "ghost", "dog"]
    assert registry.load("dog") is dog
    assert registry.get("dog").info == {"legs": 4}
    cat = registry.register("cat")(SimpleNamespace())
    assert registry.load("cat") is cat
    assert next(iter(registry)) == "cat"


def test_a_folder_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="costream_nowhere"):
        list(Registry[Any]("costream_nowhere", "register"))
    with pytest.raises(SyntaxError, match="does not end"):
        declarations('@register("a"', "register")


def test_what_formats_declare_is_known_before_they_are_imported():
    from costream.sinks.base import OUTPUT_FILES

    before = {name: dict(entry.info) for name, entry in OUTPUT_FILES._declared.items()}
    assert before == {name: dict(OUTPUT_FILES.get(name).info) for name in before}
