"""Label files as tools, systems and people write them, and invalid ones."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.core.records import Segment
from costream.labels.reading import read_recordings

EAF = """<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT AUTHOR="" DATE="2026-11-22T10:00:00+01:00" FORMAT="3.0" VERSION="3.0"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
    xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd">
    <LICENSE LICENSE_URL=""/>
    <HEADER MEDIA_FILE="" TIME_UNITS="milliseconds">
        <MEDIA_DESCRIPTOR MEDIA_URL="file:///C:/my%20films/clip.mp4" MIME_TYPE="video/mp4"
            RELATIVE_MEDIA_URL="./clip.mp4"{origin}/>
        <MEDIA_DESCRIPTOR EXTRACTED_FROM="file:///C:/my%20films/clip.mp4"
            MEDIA_URL="file:///C:/my%20films/clip.wav" MIME_TYPE="audio/x-wav"/>
        <PROPERTY NAME="URN">urn:nl-mpi-tools-elan-eaf:1</PROPERTY>
        <PROPERTY NAME="lastUsedAnnotationId">4</PROPERTY>
    </HEADER>
    <TIME_ORDER>
        <TIME_SLOT TIME_SLOT_ID="ts1" TIME_VALUE="1000"/>
        <TIME_SLOT TIME_SLOT_ID="ts2" TIME_VALUE="2500"/>
        <TIME_SLOT TIME_SLOT_ID="ts3"{slot}/>
        <TIME_SLOT TIME_SLOT_ID="ts4" TIME_VALUE="4000"/>
    </TIME_ORDER>
    <TIER LINGUISTIC_TYPE_REF="default-lt" TIER_ID="default"/>
    <TIER ANNOTATOR="ann" LINGUISTIC_TYPE_REF="default-lt" TIER_ID="actions">
        <ANNOTATION>
            <ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="ts1" TIME_SLOT_REF2="ts2">
                <ANNOTATION_VALUE>wave &amp; walk
                </ANNOTATION_VALUE>
            </ALIGNABLE_ANNOTATION>
        </ANNOTATION>
    </TIER>
    <TIER LINGUISTIC_TYPE_REF="default-lt" TIER_ID="light">
        <ANNOTATION>
            <ALIGNABLE_ANNOTATION ANNOTATION_ID="a2" TIME_SLOT_REF1="ts3" TIME_SLOT_REF2="ts4">
                <ANNOTATION_VALUE>dark</ANNOTATION_VALUE>
            </ALIGNABLE_ANNOTATION>
        </ANNOTATION>
    </TIER>
    <TIER LINGUISTIC_TYPE_REF="translation" PARENT_REF="actions" TIER_ID="german">
        <ANNOTATION>
            <REF_ANNOTATION ANNOTATION_ID="a3" ANNOTATION_REF="a1">
                <ANNOTATION_VALUE>winken</ANNOTATION_VALUE>
            </REF_ANNOTATION>
        </ANNOTATION>
    </TIER>
    <LINGUISTIC_TYPE GRAPHIC_REFERENCES="false" LINGUISTIC_TYPE_ID="default-lt"
        TIME_ALIGNABLE="true"/>
</ANNOTATION_DOCUMENT>
"""


def eaf(origin="", slot=' TIME_VALUE="3000"'):
    return EAF.replace("{origin}", origin).replace("{slot}", slot)


def read(path, text=None, encoding="utf-8"):
    """Return start, end and label of all that is read from a file, perhaps of this text."""
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    (recording,) = read_recordings(None, path)
    return [(label.start_s, label.end_s, label.label) for label in recording.labels]


def refusal(path, text):
    with pytest.raises(UsageError) as error:
        read(path, text)
    return str(error.value)


def test_an_annotation_that_cannot_be_used_costs_only_itself(tmp_path, caplog):
    assert read(tmp_path / "a.eaf", eaf(slot="")) == [(1.0, 2.5, "wave & walk")]
    assert "not aligned: it has no start or no end): " in caplog.text
    assert read(tmp_path / "a.csv", "start,end,label\n1,2,\n2,3,a\n") == [(2.0, 3.0, "a")]
    assert f"annotations left out (no label): {tmp_path / 'a.csv'}, line 2" in caplog.text


TWO = [(1.5, 2.25, "wave"), (3.0, 62.0, "walk, slowly")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "text",
    [
        'start_s,end_s,length_s,label,score\n1.5,2.25,0.75,wave,0.5\n3,62,59,"walk, slowly",\n',
        'Start;End;Label;;\n"1,5";2,25;wave;;\n3;1:02;walk, slowly;;\n;;;;\n',
        'sep=;\nlabel;start_s;end_s\nwave;1,5;2,25\n"walk, slowly";3;00:01:02,000\n',
        '"start";"end";"label"\n1,5;2,25;"wave"\n3;62;"walk, slowly"\n',
        "start\tend\tlabel\tmodel\n1,5\t2,25\twave\tm\n3\t62\twalk, slowly\tm\n",
    ],
)
def test_tables_of_spreadsheets(tmp_path, text, end, encoding):
    assert read(tmp_path / "a.csv", text.replace("\n", end), encoding) == TWO


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le"])
def test_audacity(tmp_path, encoding):
    text = "1,500000\t2,250000\twave\r\n\\\t500.0\t900.0\r\n3.0\t62\twalk, slowly\r\n"
    assert read(tmp_path / "a.txt", text, encoding) == TWO
    assert read(tmp_path / "empty.txt", "") == []


def test_raven(tmp_path):
    head = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tAnnotation"
    rows = (
        *("1\tWaveform 1\t1\t1.5\t2.25\t0\twave", "1\tSpectrogram 1\t1\t1.5\t2.25\t0\twave"),
        "2\tSpectrogram 1\t1\t3\t62\t0\twalk, slowly",
    )
    assert read(tmp_path / "a.Table.1.selections.txt", "\r\n".join([head, *rows])) == TWO


def test_raven_of_several_files(tmp_path):
    path = tmp_path / "all.txt"
    head = "Selection\tBegin Time (s)\tEnd Time (s)\tBegin File\tFile Offset (s)\tLabel"
    rows = "1\t1.5\t2.25\ta.wav\t1.5\twave", "2\t63\t122\tb.wav\t3\twalk, slowly"
    path.write_text("\n".join([head, *rows]), "utf-8")
    a, b = read_recordings(None, path)
    assert (a.source, b.source) == ("a.wav", "b.wav")
    assert [(x.start_s, x.end_s, x.label) for r in (a, b) for x in r.labels] == TWO


def test_rttm(tmp_path):
    text = ";; made by hand\nSPKR-INFO a 1 <NA> <NA> <NA> unknown wave <NA> <NA>\n"
    text += "SPEAKER a 1 1.5 0.75 <NA> <NA> wave <NA> <NA>\nSPEAKER a 1 3 59 <NA> <NA> w <NA>\n"
    assert read(tmp_path / "a.rttm", text) == [TWO[0], (3.0, 62.0, "w")]


def test_subtitles(tmp_path):
    srt = "1\r\n00:00:01,500 --> 00:00:02,250\r\n{\\an8}<i>wave</i> (82 %)\r\n\r\n"
    srt += "2\r\n00:00:03,000 --> 00:01:02,000\r\nwalk,\r\nslowly\r\n"
    assert read(tmp_path / "a.srt", srt) == TWO
    close = "1\n00:00:01,500 --> 00:00:02,250\nwave\n2\n00:00:03,000 --> 00:01:02,000\nwalk, slowly"
    assert read(tmp_path / "close.srt", close) == TWO
    vtt = "WEBVTT - made\n\nNOTE of a person\n\nSTYLE\n::cue {}\n\nfirst\n00:01.500 --> 00:02.250 "
    vtt += "align:start line:0\n<v Ann>wave</v> (100 %)\n\n3.000 --> 01:02.000\nwalk, slowly"
    assert read(tmp_path / "a.vtt", vtt) == TWO


def test_elan_with_several_tiers(tmp_path, caplog):
    path = tmp_path / "clip.eaf"
    both = [(1.0, 2.5, "wave & walk"), (3.0, 4.0, "dark")]
    assert read(path, eaf().replace("\n", "\r\n"), "utf-8-sig") == both
    assert "tiers with a parent tier, left out" in caplog.text
    (recording,) = read_recordings(None, tmp_path / "clip.eaf#actions")
    assert [label.label for label in recording.labels] == ["wave & walk"]
    with pytest.raises(UsageError, match="the labels have no part 'lights'; its parts: 'default'"):
        read_recordings(None, tmp_path / "clip.eaf#lights")


def test_elan_whose_media_were_shifted(tmp_path):
    assert read(tmp_path / "a.eaf", eaf(' TIME_ORIGIN="500"'))[0][:2] == (1.5, 3.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (eaf(slot="").replace("wave &amp; walk", ""), "annotation 'a2': not aligned"),
        (eaf().replace("milliseconds", "PAL-frames"), "times in PAL-frames"),
        (eaf(slot=' TIME_VALUE="soon"'), "not a number of milliseconds: 'soon'"),
        (eaf()[:900], "cannot be read as XML"),
        ("<html></html>", "no ELAN annotations"),
        (
            '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><ANNOTATION_DOCUMENT/>',
            "declares XML entities",
        ),
    ],
)
def test_bad_files_of_elan(tmp_path, text, says):
    assert says in refusal(tmp_path / "a.eaf", text)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "start_s,end_s,label\n1,2,a\n2,1,a\n", "line 3: the end (1 s) is not after"),
        ("a.csv", "start_s,end_s,label\n1,2,\n", "line 2: no label"),
        ("a.csv", "start_s,end_s,label\n1,nan,a\n", "line 2: not a time: 'nan'"),
        ("a.csv", "start_s,end_s,label\n1,2,a,b\n", "line 2: more cells than columns"),
        ("a.csv", "start_s,label\n1,a\n", "line 1: the table has no column end_s"),
        ("a.csv", "time_s,x,y\n1,2,3\n", "without a column 'label'; its columns are time_s, x, y"),
        ("a.csv", "text,label\nyes,a\n", "a table of texts with labels, not of recordings"),
        ("a.csv", "label,start,end\nTür,1,2\n".encode("cp1252"), "not text in UTF-8; save it as"),
        ("a.csv", 'label,start_s,end_s\n"a,1,2\n', "cannot be read as a CSV table"),
        ("a.txt", "1.0\t2.0\ta\nsoon\t5\tb\n", "line 2: not a time: 'soon'"),
        ("a.txt", "1.0\t2.0\t \n", "line 1: no label"),
        ("a.txt", "Some text\n", "no Audacity or Raven labels: line 1 is 'Some text'"),
        ("scaper.txt", "dog 0.5 2.0\n", "line 1 is 'dog 0.5 2.0'; Audacity has lines START, END"),
        ("a.txt", "Begin Time (s)\tEnd Time (s)\n1\t2\n", "line 1: the table has no column Label"),
        ("a.srt", "1\n00:00:01,000 --> \na\n\n", "line 2: not a time: 'no time'"),
        ("a.srt", "Some text\n", "no subtitles"),
        ("a.rttm", "LEXEME a 1 1.5 0.1 wave\n", "no SPEAKER lines"),
        ("a.rttm", "SPEAKER a 1 1.5\n", "line 1: 4 fields instead of 10"),
        ("a.jsonl", '{"type": "header"}\n{"type": "segment"}\n{}', "line 2: a segment record"),
        ("a.jsonl", '{"type": "note"}\n', "not a result of costream"),
        ("a.json", "{", "cannot be read as JSON"),
        ("a.json", '{"fps": 1' + 400 * "0" + "}", "a number of more than 64 bits"),
        ("a.json", '{"a": 1}', "no labels in this JSON"),
        ("a.json", "[1]", "no labels in this JSON"),
        ("a.json", '{"segments": [{"label": "a"}]}', "segment 1: no start or no end"),
        ("a.json", '{"schema": "costream/9"}', "results of another schema"),
        ("a.json", '{"database": {"v": {"annotations": [{"segment": [1]}]}}}', "v, annotation 1"),
        ("a.json", '{"v": {"actions": [[1, 2]]}}', "v, action 1: not [class, start, end]"),
        ("a.json", '{"videos": [{"labels": [9]}], "classes": ["a"], "fps": 1}', "no frame classes"),
        ("a.mp4", "", "not a supported label file"),
    ],
)
def test_bad_files_are_reported(tmp_path, name, text, says):
    message = refusal(tmp_path / name, text)
    assert says in message
    assert message.startswith(str(tmp_path / name))
    assert "\n" not in message


def test_all_mistakes_are_reported_together(tmp_path):
    (tmp_path / "a.srt").write_text("1\n00:00:02,000 --> 00:00:01,000\na\n\n", "utf-8")
    (tmp_path / "b.csv").write_text("start_s,end_s,label\n" + "1,2,\n" * 22, "utf-8")
    with pytest.raises(UsageError) as error:
        read_recordings(None, tmp_path)
    assert f"{tmp_path / 'a.srt'}: line 2: the end (1 s)" in str(error.value)
    assert f"{tmp_path / 'b.csv'}: line 2: no label" in str(error.value)
    assert "(and 13 more)" in str(error.value)


def test_skipped_parts_are_reported(tmp_path, caplog):
    text = "-2\t-1\tbefore\n-1\t1\ta\n3\t3\tmark\n4\t6\ta\n5\t7\tb\n"
    assert read(tmp_path / "a.txt", text) == [(0.0, 1.0, "a"), (4.0, 6.0, "a"), (5.0, 7.0, "b")]
    assert f"labels before 0 s, left out: {tmp_path / 'a.txt'}, line 1" in caplog.text
    assert f"labels without length, left out: {tmp_path / 'a.txt'}, line 3" in caplog.text
    assert f"labels that overlap another: {tmp_path / 'a.txt'}, line 5" in caplog.text


def test_several_runs_in_one_file(tmp_path, written):
    written(["jsonl"], tmp_path, "a.mp4", [Segment(1.5, 2.25, "wave", 0.5)])
    written(["jsonl"], tmp_path, "b.mp4", [])
    runs = [(tmp_path / f"{name}.mp4.jsonl").read_text("utf-8") for name in "ab"]
    path = tmp_path / "all.jsonl"
    path.write_text("".join(runs), "utf-8")
    assert [(r.source, len(r.labels)) for r in read_recordings(None, path)] == [
        *(("a.mp4", 1), ("b.mp4", 0))
    ]
    path.write_text(runs[0] + runs[0], "utf-8")
    wrong = "contains 2 runs over one source; keep the lines of only one"
    with pytest.raises(UsageError, match=wrong):
        read_recordings(None, path)


def test_sets_of_videos(tmp_path):
    path = tmp_path / "gt.json"
    videos = {
        "v1": {"subset": "training", "duration": 9.5, "annotations": []},
        "v2": {"subset": "test", "annotations": [{"segment": ["1.5", "2.25"], "label": "wave"}]},
    }
    path.write_text(json.dumps({"version": "1.3", "database": videos}), "utf-8")
    one, two = read_recordings(None, path)
    assert (one.source, one.duration_s, one.labels, one.whole) == ("v1", 9.5, (), True)
    assert two.labels[0].where == f"{path}, v2, annotation 1"
    assert [r.source for r in read_recordings(None, tmp_path / "gt.json#train")] == ["v1"]
    assert [r.source for r in read_recordings(None, tmp_path / "gt.json#testing")] == ["v2"]


def test_classes_by_number(tmp_path):
    path = tmp_path / "m.json"
    path.write_text('{"v": {"subset": "training", "actions": [[7, 1.5, 2.25]]}}', "utf-8")
    assert read(path) == [(1.5, 2.25, "7")]
    (tmp_path / "class_list.txt").write_text("7 Cricket Shot\n8 Diving\n", "utf-8")
    assert read(path) == [(1.5, 2.25, "Cricket Shot")]


def test_frames_in_arrays(tmp_path):
    rows = np.array([0, 0, 1, 1, 2, -1, 0])
    np.savez(tmp_path / "a.npz", labels=rows, rate_hz=2.0, names=["no", "wave", "walk"])
    stretches = [*((0.0, 1.0, "no"), (1.0, 2.0, "wave"), (2.0, 2.5, "walk")), (3.0, 3.5, "no")]
    assert read(tmp_path / "a.npz") == stretches
    np.save(tmp_path / "b.npy", rows)
    with pytest.raises(UsageError, match=r"the class names are unknown; write frames\.json"):
        read(tmp_path / "b.npy")
    (tmp_path / "frames.json").write_text('{"rate_hz": 2, "names": ["no", "wave"]}', "utf-8")
    with pytest.raises(UsageError, match=r"b\.npy: 3 classes, but only 2 names"):
        read(tmp_path / "b.npy")
    (tmp_path / "frames.json").write_text('{"rate_hz": 2, "names": ["no", "wave", "walk"]}')
    assert read(tmp_path / "b.npy") == stretches


def test_targets_of_thumos(tmp_path):
    rows = np.zeros((8, 22))
    rows[:4, 0] = rows[4:, 5] = rows[4:6, 8] = 1
    np.save(tmp_path / "video_test_0000004.npy", rows)
    assert read(tmp_path / "video_test_0000004.npy") == [
        *((0.0, 1.0, "Background"), (1.0, 2.0, "CliffDiving"), (1.0, 1.5, "Diving"))
    ]
    np.save(tmp_path / "features.npy", np.full((8, 22), 0.5))
    with pytest.raises(UsageError, match="no frame labels"):
        read(tmp_path / "features.npy")


def test_targets_of_many_videos(tmp_path):
    rows = np.eye(22)[[0, 0, 3]]
    path = tmp_path / "thumos_val_anno.pickle"
    path.write_bytes(
        pickle.dumps({"v1": {"anno": rows, "feature_length": 3}, "v2": {"anno": rows}})
    )
    recordings = read_recordings(None, path)
    assert [r.source for r in recordings] == ["v1", "v2"]
    assert [label.label for label in recordings[1].labels] == ["Background", "Billiards"]
    assert recordings[0].duration_s == 0.75
