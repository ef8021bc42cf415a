"""Text from users, files and file systems: one word is one word, however it is spelled."""

from __future__ import annotations

import unicodedata
from pathlib import Path, PurePosixPath
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import ModelError, SourceError
from costream.core.hysteresis import match_labels
from costream.core.label_sets import custom_labels
from costream.core.places import parse_place
from costream.core.settings import read_toml
from costream.core.spelling import composed, folded, stored_path
from costream.evaluation.stored_results import paired
from costream.labels.class_folders import read_classes
from costream.labels.examples import name_matcher
from costream.labels.media import Media
from costream.labels.reading import read_recordings
from costream.labels.recording import Recording
from costream.models.catalogue import find_weights
from costream.runtime.alerts.rules import RuleLabels, parse_rule, targets
from costream.runtime.batch.folders import Patterns
from costream.runtime.batch.inputs import collect
from costream.sources.uris import expand, open_source
from kit.media import make_video

Form = Literal["NFC", "NFD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD")
YAWN, KITCHEN = "g\u00e4hnen", "K\u00fcche"
HERE = PurePosixPath()
words = st.text(st.characters(codec="utf-8"), max_size=20)


@given(words)
def test_all_forms_and_cases_of_a_text_are_equal(text: str) -> None:
    apart = unicodedata.normalize("NFD", text)
    assert composed(apart) == composed(text) == composed(composed(text))
    assert folded(apart) == folded(text) == folded(folded(text)) == folded(text.casefold())


@given(st.text("abcXYZ _-.", max_size=12), st.sampled_from("\u00e4\u00df\u00e9q"))
def test_other_letters_are_other_text(text: str, letter: str) -> None:
    assert folded(text + letter) != folded(text)
    assert folded(f"a{letter}") != folded("aa")


@pytest.mark.parametrize("one", FORMS)
@pytest.mark.parametrize("other", FORMS)
def test_a_name_is_found_in_either_form(one: Form, other: Form, tmp_path: Path) -> None:
    label, asked = unicodedata.normalize(one, YAWN), unicodedata.normalize(other, YAWN)
    assert match_labels([asked.upper()], ("rest", label)) == (label,)
    assert match_labels([f"{asked[:-1]}*"], ("rest", label)) == (label,)
    classes = RuleLabels(("rest", label), (0.5, 0.5), frozenset({0}))
    assert [t.label for t in targets(parse_rule(f"{asked.title()}>=0.8"), classes)] == [label]
    assert name_matcher((label,))(asked) == label
    assert parse_place(f"{asked}=0,0 1,1", "line", "").name == YAWN
    assert parse_rule(f"person crosses {asked}").place == YAWN
    assert Patterns([f"{asked}*"]).takes(f"{label}.MP4")
    file, named = (f"{unicodedata.normalize(each, KITCHEN)}.mp4" for each in (one, other))
    recording = Recording(file, (), "", False, None)
    assert list(paired([recording], {f"x/{named}": 7})) == [(recording, 7)]
    (tmp_path / file).write_bytes(b"")
    for name in (named, named.removesuffix(".mp4"), named.lower()):
        found = Media(tmp_path).find([name], HERE)
        assert found is not None
        assert found.place.name == file


def test_exact_names_are_preferred_where_only_case_differs(tmp_path: Path) -> None:
    for name in ("clip.mp4", "CLIP.mp4"):
        (tmp_path / name).write_bytes(b"")
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("case does not count here")
    for name in ("clip.mp4", "CLIP.mp4"):
        found = Media(tmp_path).find([name], HERE)
        assert found is not None
        assert found.place.name == name
        recording = Recording(name, (), "", False, None)
        results = {"clip.mp4": "clip.mp4", "CLIP.mp4": "CLIP.mp4"}
        assert list(paired([recording], results)) == [(recording, name)]
    classes = RuleLabels(("fall", "Fall"), (0.5, 0.5), frozenset())
    assert [t.label for t in targets(parse_rule("Fall"), classes)] == ["Fall"]


def test_labels_that_look_alike_are_one_class(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, YAWN) for form in FORMS]
    table = tmp_path / "labels.csv"
    rows = ["start_s,end_s,label", *(f"{k},{k + 1},{label}" for k, label in enumerate(forms))]
    table.write_text("\n".join(rows), "utf-8")
    assert {one.label for r in read_recordings(None, table) for one in r.labels} == {YAWN}
    for label in forms:
        folder = tmp_path / "classes" / label
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.wav").write_bytes(b"")
    found = list(read_classes(tmp_path / "classes"))
    assert {one.label for recording in found for one in recording.labels} == {YAWN}
    with pytest.raises(ModelError, match="labels given twice"):
        custom_labels(tuple(forms), "labels.txt")


@pytest.mark.parametrize("one", FORMS)
@pytest.mark.parametrize("other", FORMS)
def test_a_file_is_opened_in_either_form(one: Form, other: Form, tmp_path: Path) -> None:
    folder, name = tmp_path / unicodedata.normalize(one, KITCHEN), unicodedata.normalize(one, YAWN)
    folder.mkdir()
    typed = tmp_path / unicodedata.normalize(other, KITCHEN) / unicodedata.normalize(other, YAWN)
    video = make_video(folder / f"{name}.mp4", 3)
    asked = f"{typed}.mp4"
    assert expand(asked) == [str(video)]
    assert expand(f"{typed.parent}/*.mp4") == [str(video)]
    open_source(asked).open()
    (item,) = collect([asked], tmp_path / "out", stdin=None).items
    assert item.uri == str(video)
    listed = tmp_path / f"{unicodedata.normalize(one, YAWN)}.txt"
    listed.write_text(asked, "utf-8")
    at = f"@{tmp_path}/{unicodedata.normalize(other, YAWN)}.txt"
    assert collect([at], tmp_path / "out", stdin=None).items == [item]
    weights = folder / f"{name}.safetensors"
    weights.write_bytes(b"")
    assert find_weights(f"{typed}.safetensors") == weights
    assert find_weights(unicodedata.normalize(other, YAWN), typed.parent) == weights
    assert stored_path(f"{asked}#1") == f"{video}#1"
    (folder / f"{name}.toml").write_text("rate_hz = 5", "utf-8")
    assert read_toml(Path(f"{typed}.toml")) == {"rate_hz": 5}
    table = folder / f"{name}.csv"
    table.write_text(f"file,start,end,label\n{name}.mp4,0,1,walk\n", "utf-8")
    (found,) = read_recordings(Path(f"{typed}.mp4"), Path(f"{typed}.csv"))
    assert found.source == str(video)


def test_a_file_of_which_there_are_two_is_taken_as_it_is_typed(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, "o\u0308\u0323") for form in ("NFC", "NFD")]
    third = "o\u0308\u0323"  # the same marks in another order
    for name in forms:
        (tmp_path / name).write_bytes(b"x")
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("the file system has one form")
    assert [Path(stored_path(str(tmp_path / name))).name for name in forms] == forms
    assert stored_path(str(tmp_path / third)) == str(tmp_path / third)
    with pytest.raises(SourceError, match="no such file"):
        expand(str(tmp_path / third))
    assert stored_path("k\u00fc\0che/x") == "k\u00fc\0che/x"
