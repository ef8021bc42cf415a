"""Journal of a batch: fingerprints, entries, and the identity of a command."""

from __future__ import annotations

import dataclasses
import os

import pytest

from costream.core.errors import UsageError
from costream.runtime.batch import journal as module
from costream.runtime.batch.folders import Outcome
from costream.runtime.batch.inputs import Input
from costream.runtime.batch.journal import BatchJournal, JournalEntry
from costream.runtime.batch.plan import differences, make_plan, remove_results
from costream.runtime.batch.stores import fingerprint


def done(name: str, path, out) -> JournalEntry:
    """An input that is done, with a result of five bytes."""
    (out / f"{name}.jsonl").write_bytes(b"12345")
    outcome = Outcome(name, "done", kind="video", files={f"{name}.jsonl": 5})
    return JournalEntry(outcome, fingerprint(str(path)))


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def write(folder, entries):
    journal = BatchJournal(folder)
    journal.lock()
    journal.read()
    journal.open({"schema": "x"})
    for entry in entries:
        journal.add(entry)
    return journal


def test_entries_come_back_in_order_of_names_whatever_the_order(out):
    entries = [
        JournalEntry(Outcome(name, "failed", "ünwell", 4)) for name in ("b", "a/\udcff", "c")
    ]
    for some in (entries, entries[::-1], [*entries, entries[0]]):
        write(out, some).close()
        text = (out / ".costream" / "journal.jsonl").read_bytes()
        assert text.isascii()
        read = BatchJournal(out)
        read.read()
        assert list(read.entries) == ["a/\udcff", "b", "c"]
        assert read.entries["b"] == entries[0]
    assert BatchJournal(out).mark() == {"schema": "x"}


def test_a_line_that_was_cut_off_is_not_there_and_swallows_nothing(out):
    entries = [JournalEntry(Outcome(name, "failed", "", 4)) for name in "abc"]
    journal = write(out, entries[:2])
    path = out / ".costream" / "journal.jsonl"
    killed = path.read_bytes()
    journal.close()
    for cut in range(1, len(killed), 29):
        path.write_bytes(killed[:cut])
        journal = write(out, entries[2:])
        during = path.read_bytes()
        journal.close()
        rows = (journal.entries[name] for name in sorted(journal.entries))
        assert during == b"".join(entry.to_json().encode() for entry in rows)
        assert set(journal.entries) - {"a"} in ({"c"}, {"b", "c"})


def test_one_at_a_time(out, monkeypatch):
    monkeypatch.setattr(module, "LOCK_S", 0.1)
    first = write(out, [])
    with pytest.raises(UsageError, match="another batch"):
        BatchJournal(out).lock()
    first.close()
    second = BatchJournal(out)
    second.lock()
    second.close()


def test_a_mark_that_cannot_be_read(out):
    (out / ".costream").mkdir()
    (out / ".costream" / "batch.json").write_text("{")
    with pytest.raises(UsageError, match=r"batch\.json.*--overwrite"):
        BatchJournal(out).mark()


@pytest.mark.parametrize("change", ["nothing", "size", "time", "result", "no result", "status"])
def test_only_what_is_complete_and_equal_is_kept(tmp_path, out, change):
    path = tmp_path / "a.mp4"
    path.write_text("some content")
    journal = BatchJournal(out)
    entry = done("a.mp4", path, out)
    if change == "status":
        entry = dataclasses.replace(entry, outcome=Outcome("a.mp4", "partial", "cut off", 3))
    journal.entries["a.mp4"] = entry
    if change == "size":
        times = path.stat()
        path.write_text("other content")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    elif change == "result":
        (out / "a.mp4.jsonl").write_bytes(b"1234")
    elif change == "no result":
        (out / "a.mp4.jsonl").unlink()
    plan = make_plan([Input(str(path), "a.mp4")], journal, out, content=False)
    kept = change == "nothing"
    assert (plan.kept, len(plan.tasks)) == (kept, not kept)


def test_the_largest_comes_first(tmp_path, out):
    for name, size in (("a", 10), ("b", 30), ("c", 20), ("d", 20)):
        (tmp_path / name).write_bytes(bytes(size))
    inputs = [Input(str(tmp_path / name), name) for name in "abcd"]
    plan = make_plan(inputs, BatchJournal(out), out, content=False)
    assert [task.name for task in plan.tasks] == ["b", "c", "d", "a"]


def test_fingerprints_cover_every_file_of_an_input(tmp_path):
    (tmp_path / "v_rgb.npy").write_text("1")
    alone = fingerprint(str(tmp_path / "v_rgb.npy"))
    (tmp_path / "v_flow.npy").write_text("2")
    assert fingerprint(str(tmp_path / "v_rgb.npy")) != alone
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "c_0_keypoints.json").write_text("{}")
    before = fingerprint(str(tmp_path / "clip"), content=True)
    (tmp_path / "clip" / "c_0_keypoints.json").write_text("[]")
    assert fingerprint(str(tmp_path / "clip"), content=True) != before


def test_what_differs_is_named():
    old = {"version": "1", "formats": ["csv"], "options": {"top_k": 3, "wait": False}}
    assert differences(old, old) == []
    new = {"version": "1", "formats": ["csv", "srt"], "options": {"top_k": 5, "wait": False}}
    assert differences(old, new) == ["formats csv, now csv,srt", "top_k 3, now 5"]


def test_nothing_outside_the_folder_is_ever_removed(tmp_path, out):
    (tmp_path / "precious.jsonl").write_text("x")
    (out / "a.jsonl").write_text("x")
    files = {"../precious.jsonl": 1, str(tmp_path / "precious.jsonl"): 1, "a.jsonl": 1}
    remove_results(out, [JournalEntry(Outcome("a", "done", files=files))])
    assert (tmp_path / "precious.jsonl").exists()
    assert not (out / "a.jsonl").exists()
