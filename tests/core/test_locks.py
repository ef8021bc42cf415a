"""Temporary files: nothing is written through a link or waits for a pipe of their name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costream.core.locks import append_own, open_own
from costream.runtime.saved_state import write_state
from costream.sinks.atomic import AtomicFile, replace_file, write_file
from costream.weights_io.download import PartFile
from costream.weights_io.file import write_whole


def atomic(path: Path) -> None:
    file = AtomicFile(path)
    file.open()
    file.write("data")
    file.finish()


def download(path: Path) -> None:
    part = PartFile(path, "https://host/net.pth")
    part.begin("1")
    with part.open() as file:
        part.write(file, b"data")
    part.finish()


def state(path: Path) -> None:
    write_state(path, {}, {}, durable=False)


PART = "{}.part"
WRITERS = [
    (atomic, PART),
    (lambda path: write_file(path, b"data"), PART),
    (lambda path: replace_file(path, b"data"), PART),
    (lambda path: write_whole(path, [b"data"]), ".{}.{pid}.part"),
    (download, PART),
    (download, "{}.part.json"),
    (state, "{}"),
    (lambda path: append_own(path).close(), "{}"),
]


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")
@pytest.mark.parametrize("made", [link, hard_link, pipe])
@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_what_has_the_name_of_a_temporary_file_is_not_written_to(
    tmp_path: Path, write: Callable[[Path], Any], name: str, made: Callable[[Path, Path], None]
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out" / "a.json"
    victim.write_bytes(b"precious")
    path.parent.mkdir()
    made(path.with_name(name.format(path.name, pid=os.getpid())), victim)
    write(path)
    assert victim.read_bytes() == b"precious"
    assert path.is_file()
    assert not path.is_symlink()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs O_NOFOLLOW")
def test_a_file_of_this_process_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with open(tmp_path / "a", "ab", opener=open_own) as file:
        file.write(b"2")
    assert (tmp_path / "a").read_bytes() == b"12"
