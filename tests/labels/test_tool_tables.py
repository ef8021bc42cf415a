"""Tables of labels as annotation tools and data sets write them, and ``--columns``."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest

from costream.core.errors import UsageError
from costream.core.records import Segment
from costream.labels.formats.label_headings import split_columns
from costream.labels.reading import read_recordings

WALK = ("walk", 3.25, 6.9)
SIT = ("sit down", 7.0, 8.5)
BOTH = {"room.mp4": [WALK, SIT]}
BORIS = "Observation id,Time,Media file path,FPS,Subject,Behavior,Comment,Status\n"
BORIS_ROWS = (
    "o,3.25,room.mp4,25,ann,walk,,START\no,6.9,room.mp4,25,ann,walk,,STOP\n"
    "o,7,room.mp4,25,,sit down,,START\no,8.5,room.mp4,25,,sit down,,STOP\n"
)
VIA = (
    "# Exported using VGG Image Annotator (http://www.robots.ox.ac.uk/~vgg/software/via)\n"
    "# CSV_HEADER = metadata_id,file_list,flags,temporal_coordinates,spatial_coordinates,metadata\n"
    '"1_a","[""room.mp4""]",0,"[3.25,6.9]","[]","{""1"":""walk""}"\n'
    '"1_b","[""room.mp4""]",0,"[7,8.5]","[]","{""1"":""sit down""}"\n'
)


def read(path, text, columns=None):
    path.write_text(text, "utf-8")
    return {
        recording.source: [(label.label, label.start_s, label.end_s) for label in recording.labels]
        for recording in read_recordings(None, path, None, columns)
    }


@pytest.mark.parametrize(
    "text",
    [
        "filename\tonset\toffset\tevent_label\n"
        "room.mp4\t3.25\t6.9\twalk\nroom.mp4\t7\t8.5\tsit down\n",
        "Observation id,Source,FPS,Behavior,Behavior type,Start (s),Stop (s),Duration (s)\n"
        "o,player #1:room.mp4,25,walk,STATE,3.25,6.9,3.65\n"
        "o,player #1:room.mp4,25,sit down,STATE,7,8.5,1.5\n",
        BORIS + BORIS_ROWS,
        "Observation id\to\n\nPlayer\t1\n\n"
        + (BORIS + BORIS_ROWS).replace("o,", "").replace("Observation id,", ""),
        "Start (s),End (s),Scientific name,Common name,Confidence,File\n"
        "3.25,6.9,Ambulo,walk,0.9,room.mp4\n7,8.5,Sedeo,sit down,0.8,room.mp4\n",
        "video_id;start_timestamp;stop_timestamp;start_frame;verb\n"
        "room.mp4;00:00:03.25;00:00:06.90;81;walk\nroom.mp4;00:00:07.00;00:00:08.50;9;sit down\n",
        "file,start_ms,end_ms,label\nroom.mp4,3250,6900,walk\nroom.mp4,7000,8500,sit down\n",
        "file,fps,start_frame,stop_frame,label\n"
        "room.mp4,20,65,138,walk\nroom.mp4,2,14,17,sit down\n",
        "id,actions,length\nroom.mp4,c1 3.25 6.90;c2 7.00 8.50,49.2\n",
        VIA,
    ],
)
def test_tables_of_tools(tmp_path, text):
    (tmp_path / "Charades_v1_classes.txt").write_text("c1 walk\nc2 sit down\n", "utf-8")
    found = read(tmp_path / "room.mp4.csv", text)
    assert found == BOTH or list(found.values()) == list(BOTH.values())  # one may not name it


def test_events_of_boris_without_a_stop_are_left_out(tmp_path, caplog):
    text = BORIS + BORIS_ROWS + "o,9,room.mp4,25,,wave,,START\no,9,room.mp4,25,,cough,,POINT\n"
    assert list(read(tmp_path / "a.csv", text).values()) == list(BOTH.values())
    assert "annotations left out (START without its STOP)" in caplog.text
    assert f"events without length, left out: {tmp_path / 'a.csv'}, line 7" in caplog.text


def test_seconds_of_ava_are_joined(tmp_path):
    text = "v,902,0.1,0.2,0.3,0.4,12,0\nv,903,0.1,0.2,0.3,0.4,12,0\nv,907,0.1,0.2,0.3,0.4,12,0\n"
    found = read(tmp_path / "a.csv", text)
    assert found == {"v": [("12", 901.5, 903.5), ("12", 906.5, 907.5)]}


def test_clips_without_events_of_desed(tmp_path, caplog):
    text = "filename\tonset\toffset\tevent_label\na.wav\t\t\t\nb.wav\t1\t2\tdog\n"
    assert read(tmp_path / "a.tsv", text) == {"a.wav": [], "b.wav": [("dog", 1.0, 2.0)]}
    assert "left out" not in caplog.text
    read(tmp_path / "a.tsv", text + "b.wav\t3\t4\t\n")
    assert f"annotations left out (no label): {tmp_path / 'a.tsv'}, line 4" in caplog.text


def test_named_columns(tmp_path, caplog):
    text = "clip;From;To (ms);What\nroom.mp4;3,25;6900;walk\n"
    path, columns = tmp_path / "a.csv", "file=clip,start=From,end=To (ms),label=What"
    assert read(path, text, columns) == {"room.mp4": [WALK]}
    assert "columns taken: file 'clip', start 'from', end 'to (ms)', label 'what'" in caplog.text
    with pytest.raises(UsageError, match=r"no column 'who'; its columns are clip, from, to \(ms\)"):
        read(path, text, "label=Who")
    with pytest.raises(
        UsageError, match=r"columns are clip, from, to \(ms\), what; name them: --c"
    ):
        read(path, text)


def test_frames_need_a_rate(tmp_path):
    text = "file,start_frame,end_frame,label\nroom.mp4,50,75,walk\n"
    with pytest.raises(UsageError, match="frames of an unknown rate; give it: --columns fps=25"):
        read(tmp_path / "a.csv", text)
    assert read(tmp_path / "a.csv", text, "fps=25") == {"room.mp4": [("walk", 2.0, 3.0)]}


def test_columns_of_labels_and_of_joints():
    text = "label=Behavior,time=t,x={}_x,y={}_y"
    assert split_columns(text) == ({"label": "Behavior"}, "time=t,x={}_x,y={}_y")
    assert split_columns(None) == ({}, None)
    with pytest.raises(UsageError, match="label without a heading"):
        split_columns("start=a,label")
    with pytest.raises(UsageError, match="names start twice"):
        split_columns("start=a,start=b")


LONG = '''File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 49.2
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "act"
        xmin = 0
        xmax = 49.2
        intervals: size = 3
        intervals [1]:
            xmin = 0
            xmax = 3.25
            text = ""
        intervals [2]:
            xmin = 3.25
            xmax = 6.9
            text = "walk"
        intervals [3]:
            xmin = 7
            xmax = 8.5
            text = "say ""2 = 2"""
    item [2]:
        class = "TextTier"
        name = "clicks"
        xmin = 0
        xmax = 49.2
        points: size = 1
        points [1]:
            number = 3
            mark = "click"
'''
SHORT = '''File type = "ooTextFile"
"TextGrid"

0
49.2
<exists>
2
"IntervalTier"
"act"
0
49.2
3
0
3.25
""
3.25
6.9
"walk"
7
8.5
"say ""2 = 2"""
"TextTier"
"clicks"
0
49.2
1
3
"click"
'''


@pytest.mark.parametrize("text", [LONG, SHORT])
def test_praat(tmp_path, text, caplog):
    path = tmp_path / "room.TextGrid"
    path.write_text(text, "utf-16")
    (recording,) = read_recordings(None, path)
    found = [(label.label, label.start_s, label.end_s) for label in recording.labels]
    assert found == [WALK, ('say "2 = 2"', 7.0, 8.5)]
    assert recording.duration_s == 49.2
    assert "points without length, left out" in caplog.text
    (only,) = read_recordings(None, tmp_path / "room.TextGrid#clicks")
    assert only.labels == ()
    with pytest.raises(UsageError, match="damaged or truncated TextGrid"):
        read(path, text[: text.index("walk")])
    with pytest.raises(UsageError, match="no Praat TextGrid in text form"):
        read(path, "ooBinaryFile")


@pytest.mark.parametrize(
    "text",
    [
        "act\t\t00:00:03.250\t00:00:06.900\t00:00:03.650\twalk\n"
        "act\t\t00:00:07.000\t00:00:08.500\t00:00:01.500\tsit down\n",
        "act\t\t00:00:03.250\t3.25\t00:00:06.900\t6.9\twalk\n"
        "act\t\t00:00:07.000\t7.0\t00:00:08.500\t8.5\tsit down\nact\t\t\t\t\n",
        "Selection\tBegin Time (s)\tEnd Time (s)\tCommon Name\tBegin Path\tFile Offset (s)\n"
        "1\t3.25\t6.9\twalk\tC:\\x\\room.mp4\t3.25\n2\t7\t8.5\tsit down\tC:\\x\\room.mp4\t7\n",
        "Begin Time (s)\tEnd Time (s)\tLabel\t\n3.25\t6.9\twalk\tx\n7\t8.5\tsit down\ty\n",
        "onset\toffset\tevent_label\n3.25\t6.9\twalk\n7\t8.5\tsit down\n",
    ],
)
def test_text_of_tools(tmp_path, text):
    assert list(read(tmp_path / "room.txt", text).values()) == list(BOTH.values())


def test_labels_of_frames(tmp_path):
    lines = "none\n" * 65 + "walk\n" * 73 + "none\n" * 2
    ranges = "1-65 none\n66-138 walk\n139-140 none\n"
    for text in (lines, ranges):
        (found,) = read(tmp_path / "room.txt", text, "fps=20").values()
        assert found == [("none", 0.0, 3.25), WALK, ("none", 6.9, 7.0)]
        with pytest.raises(UsageError, match="frames of an unknown rate; give it: --columns fps"):
            read(tmp_path / "room.txt", text)


RANGES = [
    {"ranges": [{"start": 66, "end": 138}], "timelinelabels": ["walk"]},
    {"ranges": [{"start": 141, "end": 170}], "timelinelabels": ["sit down"]},
]
SPANS = [
    {"start": 3.25, "end": 6.9, "channel": 0, "labels": ["walk"]},
    {"start": 7, "end": 8.5, "channel": 0, "labels": ["sit down"]},
]


@pytest.mark.parametrize("values", [RANGES, SPANS])
@pytest.mark.parametrize(
    "address",
    ["/data/upload/1/0123abcd-room.mp4", "/data/local-files/?d=films/room.mp4", "s3://b/room.mp4"],
)
def test_label_studio(tmp_path, values, address):
    results = [{"type": "timelinelabels", "value": value} for value in values]
    full = [{"id": 1, "data": {"video": address}, "annotations": [{"result": results}]}]
    small = [{"id": 1, "video": address, "label": values, "annotator": 1}]
    second = {"id": 2, "data": {"video": "b.mp4"}, "annotations": []}
    for tasks in ([*full, second], [*small, {"id": 2, "video": "b.mp4"}]):
        found = read(tmp_path / "p.json", json.dumps(tasks), "fps=20")
        assert found == {**BOTH, "b.mp4": []}


def test_cvat(tmp_path):
    box = '<box frame="{}" outside="{}" xtl="1" ytl="1" xbr="2" ybr="2"/>'
    frames = [(65, 0), (100, 0), (138, 1), (140, 0), (141, 0)]
    shapes = "".join(box.format(frame, outside) for frame, outside in frames)
    text = "<annotations><meta><task><source>room.mp4</source></task></meta>"
    text += f'<track id="0" label="walk">{shapes}</track></annotations>'
    assert list(read(tmp_path / "a.xml", text, "fps=20").values()) == [[WALK, ("walk", 7.0, 7.1)]]
    with pytest.raises(UsageError, match="frames of an unknown rate"):
        read(tmp_path / "a.xml", text)
    with pytest.raises(UsageError, match="no tracks of CVAT for video"):
        read(tmp_path / "a.xml", "<annotations/>")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([{"start": None, "end": 2, "labels": ["a"]}], ", annotation 1: no start or no end"),
        ([{"ranges": [{"start": 1}], "timelinelabels": ["a"]}], "no start or no end"),
        ([{"start": 1, "end": 2, "labels": 7}], ": invalid annotations (TypeError"),
    ],
)
def test_damaged_tasks_of_label_studio(tmp_path, values, says):
    task = {"id": 1, "video": "room.mp4", "label": values}
    with pytest.raises(UsageError) as error:
        read(tmp_path / "p.json", json.dumps([task]), "fps=20")
    assert str(error.value).startswith(f"{tmp_path / 'p.json'}: task 1")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.csv",
            "video_id,start_timestamp,stop_timestamp,verb\nroom.mp4,0:03.25,0:06.9,walk\n"
            "room.mp4,0:07,0:08.5,sit down\nroom.mp4,0:09,,jump\n",
        ),
        (
            "a.txt",
            "Selection\tBegin Time (s)\tEnd Time (s)\tCommon Name\tBegin Path\n"
            "1\t3.25\t6.9\twalk\troom.mp4\n2\t7\t8.5\tsit down\troom.mp4\n3\t9\t10\tjump\t\n",
        ),
        (
            "a.json",
            '{"database": {"room.mp4": {"annotations": [{"segment": [3.25, 6.9], "label":'
            ' "walk"}, {"segment": [9], "label": "jump"}, {"segment": [7, 8.5], "label":'
            ' "sit down"}, {"segment": [10, 11]}]}}}',
        ),
        (
            "a.json",
            json.dumps(
                [
                    {
                        "id": 1,
                        "video": "room.mp4",
                        "label": [*SPANS, {"start": 9, "end": None, "labels": ["jump"]}],
                    }
                ]
            ),
        ),
    ],
)
def test_an_annotation_without_a_time_costs_only_itself(tmp_path, caplog, name, text):
    assert list(read(tmp_path / name, text).values()) == list(BOTH.values())
    assert "annotations left out (no " in caplog.text


def test_a_track_of_cvat_and_a_line_of_ava_that_cannot_be_read(tmp_path, caplog):
    boxes = '<box frame="65" outside="0"/><box frame="138" outside="1"/>'
    torn = '<track id="1" label="sit"><box frame="x" outside="0"/></track>'
    text = f'<annotations><track id="0" label="walk">{boxes}</track>{torn}</annotations>'
    assert list(read(tmp_path / "a.xml", text, "fps=20").values()) == [[WALK]]
    assert "track 1" in caplog.text
    rows = "room,3,0.1,0.2,0.3,0.4,12,0\nroom,x,0.1,0.2,0.3,0.4,12,0\nroom,5\n"
    assert list(read(tmp_path / "a.csv", rows).values()) == [[("12", 2.5, 3.5)]]
    assert "annotations left out (not a time: 'x')" in caplog.text


def test_frames_without_a_label_keep_their_place(tmp_path):
    text = "walk\n" * 20 + "\n" * 10 + "sit down\n" * 10
    (found,) = read(tmp_path / "room.txt", text, "fps=10").values()
    assert found == [("walk", 0.0, 2.0), ("sit down", 3.0, 4.0)]


# --- projects and timelines of other programs, as these write them ----------------------------

EDL = (
    "TITLE: cut\nFCM: DROP FRAME\n\n"
    "1  A001 V     C        00:01:00;02 00:01:01;02 01:00:00;00 01:00:01;00\n"
    "* FROM CLIP NAME: room.mp4\n* LOC: 01:00:00;12 GREEN   walk\n"
    "2  A001 V     D 012    00:00:07;00 00:00:08;15 01:00:01;00 01:00:02;15\n"
    "* FROM CLIP NAME: room.mp4\n* LOC: 01:00:01;00 GREEN   sit down\n"
)


def test_edit_lists_with_drop_frame_time_codes(tmp_path):
    # The first frame of the second minute is 00:01:00;02, number 1800 (SMPTE 12M).
    found = read(tmp_path / "room.mp4.edl", EDL, "fps=29.97")["room.mp4"]
    starts = [
        (label, round(start_s * 29.97), round(end_s * 29.97)) for label, start_s, end_s in found
    ]
    assert sorted(starts) == [("sit down", 210, 255), ("walk", 1800, 1830)]
    with pytest.raises(UsageError, match="frames of an unknown rate; give it: --columns fps=25"):
        read(tmp_path / "a.edl", EDL)


def test_chapters_last_until_the_next(tmp_path):
    text = "0:00 Intro\n(1:05) - Walk 2:30\n1:02:03 The end\n"
    assert read(tmp_path / "a.txt", text) == {
        "a": [("Intro", 0, 65), ("Walk 2:30", 65, 3723), ("The end", 3723, None)]
    }


def test_chapters_of_ffmpeg_with_escapes_and_other_sections(tmp_path):
    text = (
        ";FFMETADATA1\ntitle=film\n[CHAPTER]\nTIMEBASE=1/10\nSTART=5\nEND=20\n"
        "title=a\\=b\\; \\#c\\\\\n[STREAM]\ntitle=no\n[CHAPTER]\nSTART=3000000000\nEND=4000000000\n"
        "title=two \\\nlines\n"
    )
    found = [("a=b; #c\\", 0.5, 2.0), ("two  lines", 3.0, 4.0)]
    assert read(tmp_path / "a.ffmetadata", text) == {"a": found}


def test_projects_of_boris(tmp_path, caplog):
    def observation(file, offset, *events):
        return {"file": {"1": [file]}, "time offset": offset, "events": events}

    walk = [[3.25, "ann", "walk", "", ""], [6.9, "ann", "walk", "", ""]]
    sit = [[17, "", "sit down", "", "", 70], [18.5, "", "sit down", "", "", 85]]
    project = {
        "behaviors_conf": {"0": {"code": "cough", "type": "Point event"}},
        "observations": {
            "one": observation("C:\\films\\room.mp4", 0.0, *walk, [4, "", "cough", "", ""]),
            "two": observation("sub/b.mp4", 10, *sit, [20, "", "wave", "", ""]),
        },
    }
    found = read(tmp_path / "p.boris", json.dumps(project))
    assert found == {"C:/films/room.mp4": [WALK], "sub/b.mp4": [SIT]}
    assert "events without length, left out" in caplog.text
    assert "annotations left out (a start without its stop)" in caplog.text


def test_markers_of_clips_are_their_labels(tmp_path):
    def span(start, length):
        return {
            "start_time": {"rate": 24.0, "value": 24 * start},
            "duration": {"rate": 24.0, "value": 24 * length},
        }

    clip = {
        "OTIO_SCHEMA": "Clip.1",
        "name": "room.mp4",
        "source_range": span(0, 10),
        "media_reference": {"target_url": "file:///films/room%20%C3%A4.mp4"},
    }
    markers = [
        {"name": "walk", "marked_range": span(1, 2)},
        {"name": "a moment", "marked_range": span(5, 0)},
    ]
    tracks = [{"name": "V1", "children": [{**clip, "markers": markers}]}]
    timeline = {"OTIO_SCHEMA": "Timeline.1", "tracks": {"children": tracks}}
    found = read(tmp_path / "room ä.mp4.otio", json.dumps(timeline))
    assert found == {"room ä.mp4": [("walk", 1.0, 3.0)]}


def test_pre_annotations_that_nobody_has_corrected(tmp_path, caplog):
    value = {"start": 3.25, "end": 6.9, "labels": ["walk"]}
    task = {
        "data": {"video": "/data/local-files/?d=in%20put/room.mp4"},
        "predictions": [{"result": [{"value": value}]}],
    }
    assert read(tmp_path / "room.mp4.json", json.dumps([task])) == {"room.mp4": [WALK]}
    assert "nobody has annotated a task, its pre-annotations are taken" in caplog.text


# --- files that public reports describe -------------------------------------------------------

CHRONOLOGICAL = (
    '"Praat chronological TextGrid text file"\n0 9   ! Time domain.\n1   ! Number of tiers.\n'
    '"IntervalTier" "a" 0 9\n1 3.25 6.9\n"walk"\n1 7 8.5\n"sit down"\n'
)
MARKERS = "Marker Name\tDescription\tIn\tOut\tDuration\tMarker Type\n"
REPORTED = {
    "BORIS 203, 576: events as they are copied.txt": (
        "3.25\tann\twalk\t\t\tNA\n6.9\tann\twalk\t\t\tNA\n7\t\tsit down\t\t\n8.5\t\tsit down\t\t\n"
    ),
    "EllaVator 47: chronological.TextGrid": CHRONOLOGICAL,
    "label-studio-sdk 385: Create ML.json": json.dumps(
        [
            {"video": "room.mp4", "label": "walk", "start": 3.25, "end": 6.9},
            {"video": "room.mp4", "label": "sit down", "start": "00:07", "end": "00:08.5"},
        ]
    ),
    "label-studio-sdk 385: Create ML.csv": (
        "video,label,start,end\nroom.mp4,walk,3.25,6.9\nroom.mp4,sit down,00:07,00:08.5\n"
    ),
    "cuegenerator 15: markers of Audition.csv": (
        "Name\tStart\tDuration\tTime Format\tType\tDescription\n"
        "walk\t0:03.250\t0:03.650\tdecimal\tCue\t\nsit down\t0:07.000\t0:01.500\tdecimal\tCue\t\n"
    ),
    "AudiAnnotate 125: markers of Premiere.csv": (
        f"{MARKERS}walk\t\t00:00:03:05\t00:00:06:18\t00:00:03:13\tComment\n"
        "sit down\t\t00:00:07:00\t00:00:08:10\t00:00:01:10\tComment\n"
    ),
    "Datavyu.csv": (
        "#4\nact (MATRIX,true,)-code|NOMINAL\n00:00:03:250,00:00:06:900,(walk,x)\n"
        "00:00:07:000,00:00:08:500,(sit down,)\n"
    ),
    "time codes of Premiere.csv": (
        "start,end,label\n00:00:03:05,00:00:06:18,walk\n00:00:07:00,00:00:08:10,sit down\n"
    ),
    "scaper 23: blanks.txt": "3.250 6.9 walk\n7.0 8.50 sit down\n",
    "soundbay 34: no end in Raven.selections.txt": (
        "Selection\tView\tChannel\tBegin Time (s)\tDelta Time (s)\tSpecies\n"
        "0\tWaveform 1\t1\t3.25\t3.65\twalk\n1\tWaveform 1\t1\t7\t1.5\tsit down\n"
    ),
    "comchap 4, 7: no end.ffmetadata": (
        ";FFMETADATA1\n[CHAPTER]\nTIMEBASE=1/1\nSTART=3.25\nEND=6.9\ntitle=walk\n"
        "[CHAPTER]\nTIMEBASE=1/1\nSTART=7\ntitle= sit down\n[CHAPTER]\nTIMEBASE=1/1\nSTART=8.5\n"
    ),
    "opentimelineio 895, 1328: transitions.edl": (
        "TITLE: x 20 fps\n001  A V     C        00:00:03:05 00:00:06:18 01:00:00:00 01:00:03:13\n"
        "* LOC: 01:00:00:00 RED walk\n"
        "002  A V     C        00:00:07:00 00:00:07:00 01:00:03:13 01:00:03:13\n"
        "002  B B     W001 024 00:00:07:00 00:00:08:10 01:00:03:13 01:00:05:03\n"
        "* LOC: 01:00:03:13 RED sit down\n"
    ),
}


@pytest.mark.parametrize("name", REPORTED)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_reported_files(tmp_path, name, encoding):
    path = tmp_path / name.replace(":", "")
    path.write_bytes(REPORTED[name].encode(encoding))
    (recording,) = read_recordings(None, path, None, "fps=20" if "Premiere" in name else None)
    found = {(label.label, round(label.start_s, 6)): label.end_s for label in recording.labels}
    assert found == pytest.approx({WALK[:2]: WALK[2], SIT[:2]: SIT[2]})


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("00:00:00 a\n00:05:30 b\n01:30:45 c\n", [0, 330, 5445]),  # MarkersExtractor 114
        ("A film.\n\nTracks: \n00:00 a \n03:32 b\n08:15 c\n\nThanks!", [0, 212, 495]),  # mpv 36
        ("0:12 a\n03:32 b\n(5:00) - c\n", [12, 212, 300]),  # companion-module-youtube-live 122
        ("0:00 - 3:32 a\n3:32–5:00 b\n5:00 - 6:00: c\n", [0, 212, 300]),  # mpv 5415
    ],
)
def test_chapters_in_descriptions_of_videos(tmp_path, text, starts):
    found = read(tmp_path / "v.txt", text)["v"]
    assert [(label, start) for label, start, _ in found] == list(zip("abc", starts, strict=True))


def test_edit_lists_of_players(tmp_path):  # comchap 20
    text = "0.00\t739.92\t0\n3502.08\t3698.60\t3\n"
    found = [("cut", 0.0, 739.92), ("commercial", 3502.08, 3698.6)]
    assert read(tmp_path / "v.edl", text) == {"v": found}


def test_several_markers_in_a_piece(tmp_path, caplog):  # OpenTimelineIO 593
    loc = "* LOC: 01:00:02:01 RED     FIRST\n* LOC: 01:00:04:10 RED     SECOND\n"
    event = "001  103043_0 V     C        01:00:00:00 01:00:08:10 01:00:00:00 01:00:08:10\n"
    found = read(tmp_path / "v.edl", f"TITLE: x\nFCM: NON-DROP FRAME\n{event}{loc}", "fps=25")
    assert found == {"v": [("FIRST", 3600.0, 3608.4)]}
    assert "several markers in one piece, the first is taken" in caplog.text


@pytest.mark.parametrize("name", REPORTED)
def test_damaged_reported_files(tmp_path, name):
    text, chance = REPORTED[name], random.Random(name)
    for _ in range(60):
        at = chance.randrange(len(text))
        cut = chance.choice((0, 1, len(text)))
        path = tmp_path / name.replace(":", "")
        path.write_text(text[:at] + chance.choice(("", "\t", "9", ":", '"')) + text[at + cut :])
        with suppress(UsageError):
            read_recordings(None, path, None, "fps=20")


@pytest.mark.parametrize(
    "format",
    [
        *("textgrid", "boris", "label-studio", "ffmetadata", "edl", "otio"),
        *("eaf", "srt", "vtt", "rttm"),
    ],
)
def test_labels_are_recognised_by_their_content(tmp_path, written, format):
    segments = [Segment(3.24, 6.88, "walk", 0.9), Segment(7.0, 8.52, "sit", 0.9)]
    written([format], tmp_path / "out", "a.mp4", segments, frame_rate_hz=25.0)
    (path,) = (tmp_path / "out").iterdir()
    path.rename(tmp_path / "b.txt")
    (recording,) = read_recordings(None, tmp_path / "b.txt")
    assert [(label.label, label.start_s, label.end_s) for label in recording.labels] == [
        *(("walk", 3.24, pytest.approx(6.88)), ("sit", 7.0, pytest.approx(8.52)))
    ]


def test_a_table_with_commas_in_a_text_file(tmp_path):  # of tgt
    text = "tier_name,tier_type,start_time,end_time,text\nact,IntervalTier,3.25,6.9,walk\n"
    found = read(tmp_path / "room.txt", text, "start=start_time,end=end_time,label=text")
    assert list(found.values()) == [[WALK]]


def test_subtitles_in_brackets_are_not_json(tmp_path):
    for text in ("[Script Info]\nTitle: a\n", "{81}{172}walk\n"):
        (tmp_path / "a.ass").write_text(text)
        with pytest.raises(UsageError, match="not a supported label file"):
            read(tmp_path / "a.ass", text)
