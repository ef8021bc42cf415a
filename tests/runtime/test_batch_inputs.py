"""Inputs of a batch: order, patterns, lists, links, unique names."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.labels.media import Media
from costream.runtime.batch.inputs import Inputs, collect
from costream.runtime.batch.tables import TABLES
from costream.sinks.registry import FORMATS
from kit.program import python

links = pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights there")


def make(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def found(*arguments: object, stdin: bytes = b"", out: str = "/nowhere", **patterns) -> Inputs:
    return collect([*map(str, arguments)], Path(out), stdin=io.BytesIO(stdin), **patterns)


def names(inputs: Inputs, status: str | None = None) -> list[str]:
    return [i.name for i in inputs.items if (i.refusal.status if i.refusal else None) == status]


def test_recordings_in_one_file_are_found_by_its_content(tmp_path):
    make(tmp_path, "a.mp4", "torn.pkl")
    rows = {"rgb": np.zeros((8, 4), np.float32)}
    (tmp_path / "features").write_bytes(pickle.dumps({"one": rows, "two": rows}))
    with (tmp_path / "clips.array").open("wb") as file:
        np.save(file, np.zeros((2, 3, 4, 17, 1), np.float32))
    clips = ["clips.array#0", "clips.array#1"]
    inputs = found(tmp_path)
    assert names(inputs) == ["a.mp4", *clips, "features#one", "features#two", "torn.pkl"]
    assert [Path(m.source).name for m in Media(tmp_path).found] == names(inputs)


# --- folders and lists ------------------------------------------------------------------------


def test_a_folder_is_searched_in_order_of_names(tmp_path):
    make(tmp_path, "b.mp4", "a/z.mp4", "a/B/y.mp4", "a-b/x.mp4", ".hidden/h.mp4", ".h.mp4")
    assert names(found(tmp_path)) == ["a/B/y.mp4", "a/z.mp4", "a-b/x.mp4", "b.mp4"]
    assert names(found(f"{tmp_path}/")) == names(found(tmp_path))


def test_arguments_keep_their_order_below_their_common_folder(tmp_path):
    make(tmp_path, "x/a.mp4", "y/a.mp4", "y/deep/b.mp4")
    inputs = found(tmp_path / "y", tmp_path / "x" / "a.mp4")
    assert names(inputs) == ["y/a.mp4", "y/deep/b.mp4", "x/a.mp4"]
    assert inputs.root == str(tmp_path)
    assert all(os.path.isabs(item.uri) for item in inputs.items)


def test_what_comes_twice_is_taken_once(tmp_path):
    make(tmp_path, "a/1.mp4", "b.mp4")
    inputs = found(tmp_path / "a" / "1.mp4", tmp_path, tmp_path / "a", tmp_path / "b.mp4")
    assert names(inputs) == ["a/1.mp4", "b.mp4"]
    assert len(inputs.items) == 2


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0"])
def test_lists_in_files_and_on_standard_input(tmp_path, end):
    make(tmp_path, "a.mp4", "b c.mp4", "#d.mp4")
    wanted = ["b c.mp4", "a.mp4", "#d.mp4"]
    text = end.join(os.fsencode(tmp_path / name) for name in wanted) + end + end
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf" + text)
    assert names(found(f"@{tmp_path}/list.txt")) == wanted
    assert names(found("-", stdin=text)) == wanted


def test_a_list_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(UsageError, match="list cannot be read"):
        found(f"@{tmp_path}/none.txt")
    with pytest.raises(UsageError, match="list is empty"):
        found("-", stdin=b"\n\n")


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        (["*.mp4"], [], ["a/1.MP4", "a/raw/2.mp4"]),
        (["a/*"], [], ["a/1.MP4", "a/raw/2.mp4", "a/raw/3.ts"]),
        (["*.mp4", "b.*"], ["raw"], ["a/1.MP4", "b.ts"]),
        ([], ["a/raw/"], ["a/1.MP4", "b.ts"]),
        ([], ["*.ts", "1.*"], ["a/raw/2.mp4"]),
    ],
)
def test_patterns(tmp_path, include, exclude, left):
    make(tmp_path, "a/1.MP4", "a/raw/2.mp4", "a/raw/3.ts", "b.ts")
    assert names(found(tmp_path, include=include, exclude=exclude)) == left


def test_outputs_are_not_inputs(tmp_path):
    make(tmp_path, "a.mp4", "out/a.mp4.jsonl", "older/.costream/batch.json", "older/x.jsonl")
    (tmp_path / "out" / "b.mp4").write_text("not to be found")
    assert names(found(tmp_path, out=str(tmp_path / "out"))) == ["a.mp4"]


def test_a_folder_of_keypoints_is_one_input(tmp_path):
    make(tmp_path, "clip/clip_000_keypoints.json", "clip/clip_001_keypoints.json", "b.mp4")
    assert names(found(tmp_path)) == ["b.mp4", "clip"]
    assert names(found(tmp_path / "clip")) == ["clip"]


def test_parts_of_features_go_with_the_first(tmp_path):
    make(tmp_path, "v_rgb.npy", "v_flow.npy", "w_flow.npy")
    inputs = found(tmp_path)
    assert names(inputs) == ["v_rgb.npy", "w_flow.npy"]
    assert names(inputs, "skipped") == ["v_flow.npy"]
    assert "v_rgb.npy" in inputs.items[0].refusal.reason


# --- links and what cannot be read ------------------------------------------------------------


@links
def test_links_in_a_circle_end(tmp_path):
    make(tmp_path, "t/a/1.mp4", "outside.mp4")
    (tmp_path / "t" / "a" / "self").symlink_to(".")
    (tmp_path / "t" / "a" / "up").symlink_to("..")
    (tmp_path / "t" / "above").symlink_to(tmp_path)
    (tmp_path / "t" / "ring").symlink_to("ring")
    inputs = found(tmp_path / "t")
    assert names(inputs) == ["a/1.mp4", "ring"]  # opening the ring will fail and say why
    assert names(inputs, "skipped") == ["a/self", "a/up", "above"]


@links
def test_a_file_comes_before_links_to_it(tmp_path):
    make(tmp_path, "z.mp4")
    (tmp_path / "a.mp4").symlink_to("z.mp4")
    os.link(tmp_path / "z.mp4", tmp_path / "zz.mp4")
    inputs = found(tmp_path)
    assert names(inputs) == ["z.mp4"]
    assert [i.refusal.reason for i in inputs.items if i.refusal] == [
        "the same file as an earlier input: z.mp4"
    ] * 2


@links
def test_links_out_of_the_folder_are_followed(tmp_path):
    make(tmp_path, "elsewhere/1.mp4")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "link").symlink_to(tmp_path / "elsewhere")
    assert names(found(tmp_path / "t")) == ["link/1.mp4"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.mp4")
    inputs = found(tmp_path)
    assert names(inputs, "skipped") == ["a.mp4"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_folder_that_cannot_be_read_is_a_failure(tmp_path):
    make(tmp_path, "locked/1.mp4", "open/2.mp4")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from costream.runtime.batch.folders import FolderWalk, Patterns\n"
        "os.chdir(sys.argv[1])\n"
        "os.chmod('locked', 0)\n"
        "os.chmod('.', 0o755)\n"
        "os.geteuid() or os.setuid(65534)\n"  # root may read everything
        "for f in FolderWalk(Patterns(), Path('/nowhere')).folder('.'):\n"
        "    print(f.relative, f.refusal)\n"
    )
    done = python("-c", script, tmp_path)
    (tmp_path / "locked").chmod(0o755)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("locked Refusal(status='failed', reason='the folder cannot be read")
    assert second == "open/2.mp4 None"


# --- names ------------------------------------------------------------------------------------


def outputs(inputs: Inputs) -> list[str]:
    every = [suffix for format in FORMATS.values() for suffix in format.files]
    return [f"{item.name}.{suffix}" for item in inputs.items for suffix in every]


def test_results_never_collide(tmp_path):
    """With each other, with folders of results, and with the tables over all."""
    make(
        tmp_path,
        *("a.mp4", "a.mp3", "a.mp4.jsonl/b.mp4", "summary", "predictions", "timeline.csv/c.mp4"),
        *("predictions.csv", "summary.json"),
    )
    inputs = found(tmp_path)
    files = outputs(inputs)
    folders = {str(parent) for file in files for parent in Path(file).parents}
    assert len(set(files)) == len(files)
    assert not folders & set(files)
    assert not set(TABLES) & (set(files) | folders)
    assert len(inputs.items) == 8
    assert "a.mp3" in names(inputs)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode there")
def test_names_that_are_not_utf8_stay_apart(tmp_path):
    for name in (b"a\xff.mp4", b"a\xfe.mp4"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("x")
    assert len(set(names(found(tmp_path)))) == 2


def test_planning_loads_no_torch(tmp_path):
    script = (
        "import sys\n"
        "from costream.__main__ import main\n"
        "assert main(['batch', '--help']) == 0\n"
        "import costream.runtime.batch.command\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
