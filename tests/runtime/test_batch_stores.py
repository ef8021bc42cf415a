"""Inputs in stores: paths, folders, versions, fetching."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import UsageError
from costream.core.urls import is_store_url, local_path
from costream.runtime.batch.inputs import Inputs, collect
from costream.runtime.batch.stores import (
    check_url,
    fetch,
    fetched,
    fingerprint,
    is_folder,
    list_files,
    place,
)
from kit.fileserver import LOGIN, serving

fsspec = pytest.importorskip("fsspec", reason="needs the extra 'stores'")


@pytest.fixture
def bucket():
    """A store in this process's memory; give a function that puts files there."""
    store = fsspec.filesystem("memory")

    def put(*names: str, content: bytes = b"content") -> None:
        for name in names:
            store.pipe(f"/bucket/{name}", content)

    yield put
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture
def archive(tmp_path) -> str:
    """The path of an archive with some files, one of which wants to get out."""
    path = tmp_path / "recordings.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("b/2.mp4", "b/1.mp4", "a.mp4", "../../out.mp4"):
            file.writestr(name, name)
    return str(path)


def found(*arguments: object, stdin: bytes = b"", **patterns: list[str]) -> Inputs:
    return collect([*map(str, arguments)], Path("/nowhere"), stdin=io.BytesIO(stdin), **patterns)


def names(inputs: Inputs) -> list[str]:
    return [item.name for item in inputs.items if item.refusal is None]


# --- what a URL says --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "at"),
    [
        ("s3://bucket/a/b.mp4", "s3/bucket/a/b.mp4"),
        ("s3://key:secret@bucket//a/../b.mp4", "s3/bucket/a/b.mp4"),
        ("http://user:p@ss@host:8000/a%20b/c%2Fd.mp4?token=1#t", "http/host_8000/a b/c/d.mp4"),
        ("zip://in/a.mp4::s3://bucket/x.zip", "s3/bucket/x.zip/in/a.mp4"),
        ("zip://in/a.mp4::/data/x.zip", "/data/x.zip/in/a.mp4"),
        ("zip://in/a.mp4::file:///data/x.zip", "/data/x.zip/in/a.mp4"),
        ("simplecache::s3://bucket/x.mp4", "s3/bucket/x.mp4"),
    ],
)
def test_where_a_url_lies(url, at):
    assert is_store_url(url)
    assert place(url) == at.replace("/data", os.path.abspath("/data").replace(os.sep, "/"))


@given(st.text(), st.sampled_from(["s3://b/", "http://u:p@h/", "zip://", "memory://b/"]))
def test_no_url_leads_out_of_its_store(text, start):
    parts = place(f"{start}{text}").split("/")
    assert not {"", ".", ".."} & set(parts)
    assert all(part.isprintable() for part in parts)


def test_paths_are_not_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not any(
        map(is_store_url, ("clip.mp4", "a::b", "/s3:/x", "C:\\clips", "file:///x.mp4", "-"))
    )
    assert local_path("file:///a%20b/c.mp4") == os.path.abspath("/a b/c.mp4")
    assert local_path("s3://b") == "s3://b"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("rtsp://viewer:secret@host/1", "live feed"),
        ("nope://host/1", "nope"),
        ("zip://a.mp4::nope://viewer:secret@host/1.zip", "nope"),
    ],
)
def test_what_nothing_opens_is_refused(url, says):
    with pytest.raises(UsageError, match=says) as error:
        check_url(url)
    assert "secret" not in str(error.value)


def test_without_fsspec_it_is_reported_what_to_install(monkeypatch):
    monkeypatch.setattr("costream.runtime.batch.stores.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'costream\[stores\]'"):
        found("s3://bucket/clips")


# --- folders ----------------------------------------------------------------------------------


def test_a_folder_in_a_store_is_searched_by_the_same_rules(bucket):
    bucket("b.mp4", "a/z.mp4", "a/B/y.mp4", "a-b/x.mp4", ".hidden/h.mp4", ".h.mp4")
    bucket("old/.costream/batch.json", "old/b.mp4.jsonl", "v_rgb.npy", "v_flow.npy")
    bucket("take/1_keypoints.json", "take/0_keypoints.json")
    inputs = found("memory://bucket")
    wanted = ["a/B/y.mp4", "a/z.mp4", "a-b/x.mp4", "b.mp4", "take", "v_rgb.npy"]
    assert names(inputs) == wanted
    assert names(found("memory://bucket/")) == wanted
    (part,) = [item for item in inputs.items if item.refusal is not None]
    assert (part.name, part.refusal.status) == ("v_flow.npy", "skipped")
    assert names(found("memory://bucket", include=["a/*"])) == wanted[:2]
    assert names(found("memory://bucket", exclude=["a", "TAKE"])) == ["a-b/x.mp4", *wanted[3::2]]
    assert names(found("memory://bucket/take")) == ["take"]


def test_arguments_and_lists_keep_their_order_below_their_common_folder(bucket, tmp_path):
    bucket("x/a.mp4", "y/a.mp4", "y/b.mp4")
    listed = b"memory://bucket/y\nmemory://bucket/x/a.mp4\nmemory://bucket/y/b.mp4\n"
    assert names(found("-", stdin=listed)) == ["y/a.mp4", "y/b.mp4", "x/a.mp4"]
    assert found("-", stdin=listed).root == "memory/bucket"
    (tmp_path / "a.mp4").touch()
    with pytest.raises(UsageError, match="no folder in common"):
        found("memory://bucket/y", tmp_path / "a.mp4")


def test_an_archive_is_a_folder(archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = found("zip://::recordings.zip")
    assert names(inputs) == ["a.mp4", "b/1.mp4", "b/2.mp4", "out.mp4"]
    assert inputs.items[0].uri == f"zip://a.mp4::{archive}", "the same in every process"
    (tmp_path / "c.mp4").touch()
    beside = found("zip://b::recordings.zip", "c.mp4")
    assert names(beside) == ["recordings.zip/b/1.mp4", "recordings.zip/b/2.mp4", "c.mp4"]


def test_a_server_is_searched_by_its_index_pages(tmp_path):
    pytest.importorskip("aiohttp", reason="needs the extra 'stores'")
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "c#1.mp4").write_bytes(b"1")
    (tmp_path / "d.mp4").write_bytes(b"22")
    with serving(tmp_path) as url:
        inputs = found(url)
        assert names(inputs) == ["a b/c#1.mp4", "d.mp4"]
        assert Path(fetch(inputs.items[0].uri, tmp_path / "copy")).read_bytes() == b"1"
        assert not is_folder(f"{url}d.mp4")
        assert fingerprint(f"{url}d.mp4").size == 2
        with pytest.raises(FileNotFoundError):
            fingerprint(f"{url}none.mp4")
        with pytest.raises(OSError, match="401"):
            fingerprint(f"{url}d.mp4".replace(LOGIN, "nobody:guess"))
    (gone,) = found(url).items
    assert gone.refusal.status == "failed"
    assert "Connect" in gone.refusal.reason
    assert LOGIN not in gone.refusal.reason


def test_a_listing_with_a_query_has_that_of_all_its_files(tmp_path):
    pytest.importorskip("aiohttp", reason="needs the extra 'stores'")
    (tmp_path / "deeper").mkdir()
    for name in ("deeper/b.mp4", "a.mp4"):
        (tmp_path / name).write_text(name)
    with serving(tmp_path, "?key=a1&n=2") as url:
        inputs = found(f"{url}?key=a1&n=2#top")
        assert names(inputs) == ["a.mp4", "deeper/b.mp4"]
        for item in inputs.items:
            copied = Path(fetch(item.uri, tmp_path / "copy"))
            assert copied.read_text() == item.name
        assert fingerprint(inputs.items[0].uri).size == len("a.mp4")
        (refused,) = found(url).items
        assert "403" in refused.refusal.reason


# --- files ------------------------------------------------------------------------------------


def test_a_file_that_was_written_again_is_another(bucket):
    bucket("a.mp4")
    first = fingerprint("memory://bucket/a.mp4")
    assert fingerprint("memory://bucket/a.mp4", fresh=True) == first
    by_content = fingerprint("memory://bucket/a.mp4", content=True)
    bucket("a.mp4")
    assert fingerprint("memory://bucket/a.mp4", fresh=True) != first
    assert fingerprint("memory://bucket/a.mp4", content=True) == by_content
    bucket("a.mp4", content=b"longer content")
    assert fingerprint("memory://bucket/a.mp4", content=True) != by_content


def test_all_parts_of_an_input_are_fetched(bucket, tmp_path):
    bucket("v_rgb.npy", "v_audio.npy", "take/1_keypoints.json", "take/0_keypoints.json")
    assert Path(fetch("memory://bucket/v_rgb.npy", tmp_path)) == tmp_path / "v_rgb.npy"
    assert Path(fetch("memory://bucket/take", tmp_path)) == tmp_path / "take"
    inside = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    take = {"take/0_keypoints.json", "take/1_keypoints.json"}
    assert inside == {"v_rgb.npy", "v_audio.npy", *take}


def test_copies_are_removed_and_files_of_this_machine_are_none(archive, tmp_path):
    copies = tmp_path / "copies"
    with fetched(f"zip://a.mp4::{archive}", copies) as path:
        assert Path(path).read_text() == "a.mp4"
    assert not copies.exists()
    with pytest.raises(FileNotFoundError), fetched(f"zip://none.mp4::{archive}", copies):
        raise AssertionError("there is nothing to read")
    assert not copies.exists()
    with fetched(archive, copies) as path:
        assert path == archive
    assert Path(archive).exists()


def test_below_gives_urls_that_can_be_opened(bucket, archive):
    bucket("x/a b.mp4")
    assert list_files("memory://bucket/x") == ["memory://bucket/x/a b.mp4"]
    for url in (*list_files("memory://bucket"), *list_files(f"zip://::{archive}")):
        assert fingerprint(url).size > 0
