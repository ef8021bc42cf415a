"""Tables of labels as annotation tools and data sets write them, and ``--columns``."""

from __future__ import annotations

import pytest

from costream.core.errors import UsageError
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


def test_clips_without_events_of_desed(tmp_path):
    text = "filename\tonset\toffset\tevent_label\na.wav\t\t\t\nb.wav\t1\t2\tdog\n"
    assert read(tmp_path / "a.tsv", text) == {"a.wav": [], "b.wav": [("dog", 1.0, 2.0)]}


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
