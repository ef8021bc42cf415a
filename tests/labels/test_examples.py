"""Labelled examples: folders, tables, invalid data and splits."""

from __future__ import annotations

import pytest

from costream.core.errors import UsageError
from costream.labels.copies import join_copies
from costream.labels.examples import Example, fit_labels, split, to_examples
from costream.labels.reading import read_recordings
from costream.labels.text_lines import read_lines


@pytest.fixture
def data(tmp_path):
    for name in ("wave/a.csv", "wave/b.csv", "bend/c.csv"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("time,hips_x,hips_y,hips_z\n0,0,1,2\n", "utf-8")
    return tmp_path


def read_examples(data, group=None):
    return to_examples(read_recordings(data, None, group), None)


def table(folder, *lines):
    path = folder / "labels.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_a_folder_of_classes(data):
    examples = read_examples(data)
    assert [e.label for e in examples] == ["bend", "wave", "wave"]
    assert [e.source for e in examples] == [
        str(data / name) for name in ("bend/c.csv", "wave/a.csv", "wave/b.csv")
    ]
    assert len({e.group for e in examples}) == 3
    assert {(e.start_s, e.end_s) for e in examples} == {(0.0, None)}


def test_a_table(data):
    path = table(
        data,
        "file, start, end, label, person",
        "wave/a.csv, 1.5, 00:00:03, wave, ann",
        "wave/a.csv,,,rest,bob",
    )
    one, two = read_examples(path, "person")
    assert (one.start_s, one.end_s, one.label, one.group) == (1.5, 3.0, "wave", "ann")
    assert (two.start_s, two.end_s, two.label, two.group) == (0.0, None, "rest", "bob")
    assert one.where == f"{path}, line 2"


def test_examples_of_one_file_are_one_group(data):
    path = table(data, "file,label", "wave/a.csv,x", "wave/a.csv,y", "wave/b.csv,x")
    groups = [e.group for e in read_examples(path)]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("wave/a.csv,3,2,wave", "line 3: the end (2 s) is not after the start (3 s)"),
        ("wave/a.csv,-1,2,wave", "line 3: the start (-1 s) is before the recording"),
        ("wave/a.csv,soon,,wave", "line 3: not a time: 'soon'"),
        ("wave/a.csv,0,1,", "line 3: no label"),
        (",0,1,wave", "line 3: no file"),
        ("wave/z.csv,0,1,wave", "z.csv"),
        ("wave/a.csv,0,1,wave,more", "line 3: more cells than columns"),
    ],
)
def test_a_bad_line_is_named(data, line, says):
    path = table(data, "file,start,end,label", "wave/a.csv,0,1,wave", line)
    with pytest.raises(UsageError) as error:
        read_examples(path)
    assert str(error.value).startswith(f"{path}: line 3: ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["file,label", *["wave/a.csv,"] * 26], r"line 2: .*line 11: no label \(and 16 more\)"),
        (["file,start,end", "wave/a.csv,wave"], "no column label"),
        (["name,label", "wave/a.csv,wave"], "no column file"),
        (["file,label,begin_at", "wave/a.csv,wave"], "unknown column 'begin_at'"),
        (["file,label,End_at", "wave/a.csv,wave"], "unknown column 'end_at'"),
        (["file,label,person", "wave/a.csv,wave,ann"], "no column group"),
        (
            ["time,hips_x,hips_y,neck_x,neck_y", "0,1,2,3,4"],
            r"a table of joints, not a list of recordings .*file,start,end,label .*,0,2.5,wave",
        ),
        (["frame,joint,x,y", "0,nose,3,4"], "a table of joints, not a list"),
    ],
)
def test_bad_tables(data, lines, says):
    with pytest.raises(UsageError, match=says):
        read_examples(table(data, *lines), "group" if "group" in says else None)


def test_columns_that_say_nothing_are_named(data, caplog):
    path = table(data, "file,label,song,fold,licence", "wave/a.csv,x,one,4,CC0")
    (example,) = read_examples(path, "song")
    assert example.group == "one"
    assert "unused column 'fold', 'licence'" in caplog.text


@pytest.mark.parametrize(
    ("labels", "names", "fitted"),
    [
        (
            ("dog bark", "dog_bark", "Dog-Bark", " dog  bark"),
            ("rain", "dog bark"),
            4 * ["dog bark"],
        ),
        (("a_b", "A b"), ("a b", "a_b"), ["a_b", "a b"]),  # what is there as it is comes first
    ],
)
def test_labels_are_matched_by_their_words(labels, names, fitted):
    made = examples(*((label, "1") for label in labels))
    assert [example.label for example in fit_labels(made, names)] == fitted


def test_labels_of_no_class_are_named():
    with pytest.raises(UsageError, match="no label 'cow', 'hen'"):
        fit_labels(examples(("hen", "1"), ("dog", "2"), ("cow", "3")), ("dog",))


def test_bad_folders(data):
    (data / "d.csv").write_text("x", "utf-8")
    with pytest.raises(UsageError, match=r"files next to the class folders: d\.csv"):
        read_examples(data)
    (data / "d.csv").unlink()
    (data / "jump").mkdir()
    with pytest.raises(UsageError, match="jump: a class without recordings"):
        read_examples(data)
    (data / "jump" / "high").mkdir()
    with pytest.raises(
        UsageError, match="high: a folder inside the folder of a class; move its recordings"
    ):
        read_examples(data)
    (data / "jump" / "high").rmdir()
    with pytest.raises(UsageError, match="no such file or folder"):
        read_examples(data / "none")
    with pytest.raises(UsageError, match="no examples"):
        read_examples(data / "jump")


def examples(*groups):
    """Make an example of each (label, group)."""
    return [Example(f"{k}", label, 0.0, None, group, "") for k, (label, group) in enumerate(groups)]


def test_copies_are_one_group_and_named(tmp_path, caplog):
    sources = [tmp_path / name for name in "abcde"]
    for path, text in zip(sources, ("one", "two", "one", "six", "four"), strict=True):
        path.write_text(text, "utf-8")
    (tmp_path / "link").symlink_to(sources[3])
    given = [*map(str, sources), str(tmp_path / "link"), "not a file"]
    groups = ("g", "h", "c", "h", "e", "l", "n")
    made = [Example(s, "x", 0.0, None, g, s) for s, g in zip(given, groups, strict=True)]
    assert [e.group for e in join_copies(made)] == ["g", "h", "g", "h", "e", "h", "n"]
    assert f"{given[0]} = {given[2]}, {given[3]} = {given[5]}" in caplog.text
    caplog.clear()
    assert join_copies(made[:2]) == made[:2]
    assert not caplog.text


def test_a_split_never_divides_a_group():
    made = examples(*((label, f"person {p}") for p in range(8) for label in ("a", "b", "c")))
    train, held = split(made, 0.25, 0)
    assert len(train) + len(held) == len(made)
    assert not {e.group for e in train} & {e.group for e in held}
    assert {e.label for e in held} == {"a", "b", "c"}
    assert len(held) == 6


def test_every_class_keeps_examples_to_train_on():
    made = examples(("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "5"))
    for seed in range(6):
        train, held = split(made, 0.5, seed)
        assert {e.label for e in train} == {"a", "b"}
        assert len(held) == 2


def test_a_split_depends_on_the_seed_alone():
    made = examples(*(("ab"[k % 2], str(k)) for k in range(20)))
    assert split(made, 0.2, 5) == split(made, 0.2, 5)
    assert len({str(split(made, 0.2, seed)[1]) for seed in range(8)}) > 1
    assert split(made, 0.0, 0)[1] == []


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("before", ["", "sep={}\n"])
def test_lines_of_text_are_read_as_tables_of_labels_are(tmp_path, delimiter, quote, before):
    path = tmp_path / "lines.csv"
    rows = [("Text", "Label", "By"), ("all is well", "fine", "a"), ("it broke", "error", "b")]
    lines = [delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in rows]
    path.write_text(before.format(delimiter) + "\n".join(lines), "utf-16")
    assert [(e.source, e.label, e.group) for e in read_lines(path, "By")] == rows[1:]


def test_text_that_is_cut_at_commas_is_not_an_example(tmp_path):
    path = tmp_path / "lines.csv"
    path.write_text("text,label\nfine,good\nall,is,well\n", "utf-8")
    with pytest.raises(UsageError, match="more cells than columns: 3; put text"):
        read_lines(path, None)
