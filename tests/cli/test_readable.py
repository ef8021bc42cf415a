"""Results for people: the table, one CSV for many inputs, only some labels, what was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import costream
from costream.core.audioset import kinds_among
from costream.core.errors import UsageError
from costream.core.hysteresis import match_labels
from costream.core.label_sets import AUDIOSET_521
from costream.evaluation.metric_tables import to_text
from kit.paths import SAMPLES
from kit.runs import evaluate, records, refused, rows, run

ROOM = SAMPLES / "room.mp4"
STREET = SAMPLES / "street.ogg"
PART = ("--duration", "14")


@pytest.mark.long
def test_the_table_is_text_without_escapes(tmp_path):
    shown = run("detect", "-m", "cooadtr", ROOM, *PART, "-f", "table", "--color", "always").stdout
    assert "\x1b" not in shown
    name, columns, first, *_, cost, saving = shown.splitlines()
    assert (name, columns) == ("room.mp4", "  start      end   length  label       score")
    assert (
        saving
        == "the network computed each step once, with the same answer as recomputing its window"
    )
    assert first.split()[:5] == ["0:03.25", "0:06.88", "3.62", "s", "walk"]
    assert cost.startswith("14.0 s of video in ")
    run("detect", "-m", "cooadtr", ROOM, *PART, "-f", "table", "-o", tmp_path)
    assert (tmp_path / "room.mp4.txt").read_text("utf-8").splitlines()[:-2] == (
        shown.splitlines()[:-2]
    )
    run("batch", "-m", "cooadtr", ROOM, *PART, "-f", "table", "-o", tmp_path / "many")
    without_times = (tmp_path / "many" / "room.mp4.txt").read_text("utf-8").splitlines()[-2]
    assert without_times == "14.0 s of video"


@pytest.mark.long
def test_a_pipe_gets_the_table_of_a_terminal_and_totals_once(tmp_path):
    piped = run("detect", "-m", "cooadtr", ROOM, *PART)
    table = run("detect", "-m", "cooadtr", ROOM, *PART, "-f", "table").stdout
    assert piped.stdout.splitlines()[:-2] == table.splitlines()[:-2]
    assert "s of video" not in piped.stderr
    assert (
        run("detect", "-m", "cooadtr", ROOM, *PART, "-f", "jsonl").stderr.count("s of video") == 1
    )
    assert (
        records(run("detect", "-m", "cooadtr", ROOM, *PART, "-o", "-").stdout)[0]["type"]
        == "header"
    )
    heard = run("listen", "-m", "cotrans,cosounds", STREET, "--duration", "8").stdout
    assert "cosounds  dog bark" in heard


def test_verbose_runs_print_the_cost():
    told = run("detect", "-m", "cooadtr", ROOM, "--duration", "2", "-v").stderr
    assert "room.mp4: 16 steps, 903 MMAC: 1.4x less, the network alone 64x less" in told
    assert "MAC" not in run("detect", "-m", "cooadtr", ROOM, "--duration", "2").stdout


def test_written_files_are_named_on_stderr(tmp_path):
    call = ("detect", "-m", "cooadtr", ROOM, "--duration", "1", "-o", "out", "-f")
    last = run(*call, "jsonl,srt", cwd=tmp_path).stderr.splitlines()[-1]
    assert last == "wrote out/room.mp4.jsonl, out/room.mp4.srt"
    many = run(*call, "csv,srt,vtt", "--overwrite", cwd=tmp_path).stderr.splitlines()[-1]
    assert (many.count("out/"), many[-11:]) == (4, " and 1 more")
    assert run(*call, "csv", "--overwrite", "-q", cwd=tmp_path).stderr == ""


@pytest.mark.long
def test_one_table_of_many_inputs(tmp_path):
    second, table = tmp_path / "again.mp4", tmp_path / "made" / "all.csv"
    shutil.copy(ROOM, second)
    done = run(
        "detect", "-m", "cooadtr", ROOM, tmp_path / "gone.mp4", second, *PART, "-o", table, code=3
    )
    assert done.stderr.splitlines()[-1] == f"wrote {table}"
    got = rows(table)
    assert [*got[0]] == ["source", "start_s", "end_s", "length_s", "label", "score"]
    half = len(got) // 2
    assert [row.pop("source") for row in got] == [str(ROOM)] * half + [str(second)] * half
    assert half == len(
        records(run("detect", "-m", "cooadtr", ROOM, *PART, "-f", "jsonl").stdout, "segment")
    )
    assert got[:half] == got[half:]
    assert {path.name for path in table.parent.iterdir()} == {"all.csv"}
    refused(2, "exists already", "detect", "-m", "cooadtr", ROOM, "-o", table)
    hint = "which of them are complete; name a folder, and jsonl too: -f csv,jsonl -o FOLDER"
    refused(
        2, hint, "detect", "-m", "cooadtr", ROOM, "-o", table.parent, "-f", "csv", "--skip-existing"
    )
    refused(2, hint, "detect", "-m", "cooadtr", ROOM, "-o", table, "--skip-existing")
    refused(2, "is not a folder", "detect", "-m", "cooadtr", ROOM, "-o", table / "all.csv")
    run("listen", "-m", "cotrans,cosounds", STREET, "--duration", "8", "-o", table, "--overwrite")
    assert [row["model"] for row in rows(table)] == ["cosounds"]
    refused(2, "-f srt -o FOLDER", "detect", "-m", "cooadtr", ROOM, "-o", table.with_suffix(".srt"))
    refused(
        2,
        "a single file takes the format csv",
        "detect",
        "-m",
        "cooadtr",
        ROOM,
        "-o",
        table,
        "-f",
        "srt",
    )
    hint = "results of 2 sources cannot be written as one file; name a folder with -o, or use -f"
    refused(2, hint, "detect", "-m", "cooadtr", ROOM, second, "-f", "srt")
    alone = run("detect", "-m", "cooadtr", ROOM, *PART, "-f", "lines").stdout.splitlines()
    both = run("detect", "-m", "cooadtr", ROOM, second, *PART, "-f", "lines").stdout.splitlines()
    assert both == [f"{source}\t{line}" for source in (ROOM, second) for line in alone]
    joined = run("detect", "-m", "cooadtr", ROOM, second, *PART, "-f", "table").stdout.splitlines()
    assert (joined[0], joined[len(joined) // 2]) == (ROOM.name, second.name)
    with pytest.raises(UsageError, match="save"):
        costream.detect(ROOM, output=table, model="cooadtr")


@pytest.mark.long
def test_only_some_labels(tmp_path):
    call = ("detect", "-m", "cooadtr", ROOM, "--duration", "17", "--scores", "--only", "WALK, st*")
    header, *rest = records(run(*call, "-f", "jsonl").stdout)
    assert header["options"]["only"] == ["walk", "stand up"]
    assert {r["label"] for r in rest if r["type"] == "segment"} == {"walk", "stand up"}
    first = next(r for r in rest if r["type"] == "prediction")
    assert len(first["scores"]) == len(header["labels"])
    result = costream.detect(ROOM, only="walk", duration=17, model="cooadtr").collect()
    assert {s.label for s in result.segments} == {"walk"}
    heard = run(
        "listen",
        "-m",
        "cotrans,cosounds",
        STREET,
        "--duration",
        "14",
        "--only",
        "siren",
        "-f",
        "table",
    ).stdout
    assert ("siren" in heard, "dog bark" in heard) == (True, False)
    out = tmp_path / "many"
    run("batch", "-m", "cooadtr", ROOM, "--duration", "8", "--only", "walk", "-o", out)
    assert {row["label"] for row in rows(out / "timeline.csv")} == {"walk"}
    again = ("batch", "-m", "cooadtr", ROOM, "--duration", "8", "-o", out)
    assert "only walk, now none" in run(*again, code=2).stderr


@pytest.mark.parametrize("command", ["detect", "watch", "batch"])
def test_an_unknown_label_is_refused_with_similar_ones(tmp_path, command):
    more = {"detect": (), "watch": ("--realtime",), "batch": ("-o", tmp_path / "out")}[command]
    words = "--only: there is no label 'stand-up'; did you mean stand up"
    refused(2, words, command, "-m", "cooadtr", ROOM, "--only", "walk,stand-up", *more)


def test_labels_with_commas_and_none():
    labels = ("speech, male", "speech", "dog")
    assert match_labels(["Speech, male"], labels) == ("speech, male",)
    sounds = ["Siren", "Civil siren", "Ambulance (siren)", "Telephone bell ringing"]
    assert match_labels(["siren"], sounds) == ("Siren",)
    assert match_labels(["ambulance", "bell"], sounds) == (sounds[2], sounds[3])
    assert match_labels(["*siren*,telephone bell"], sounds) == tuple(sounds)
    assert match_labels(["dog,speech"], labels) == ("speech", "dog")
    for names in ([","], ["cat"], ["dog,[x]"]):
        with pytest.raises(UsageError):
            match_labels(names, labels)


def test_kinds_of_sounds_keep_what_is_of_them():
    sounds = AUDIOSET_521.names
    cats = ("Cat", "Purr", "Meow", "Hiss", "Caterwaul")
    assert match_labels(["cat"], sounds) == cats
    assert match_labels(["cat*", "canidae"], sounds)[:2] == ("Cat", "Caterwaul")
    animals = match_labels(["Animal"], sounds)
    assert {"Animal", "Bark", "Chirp, tweet", *cats} <= set(animals)
    assert "Speech" not in animals
    assert match_labels(["sound reproduction, tick-tock"], sounds)[-1] == "Field recording"
    homes = match_labels(["domestic sounds, home sounds"], sounds)
    assert (homes[0], homes[-1], "Ding-dong" in homes) == ("Door", "Writing", True)
    assert match_labels(["dog"], ["Dog", "Bark", "not a sound"]) == ("Dog",)


def test_every_sound_is_of_a_kind():
    labels = {name.casefold() for name in AUDIOSET_521.names}
    kinds = kinds_among(labels)
    tops = {"human sounds", "animal", "music", "natural sounds", "sounds of things"}
    tops |= {"source-ambiguous sounds", "channel, environment and background"}
    assert tops <= kinds.keys()
    assert set().union(*(kinds[top] for top in tops)) == labels
    assert len(kinds) == 521 + 29  # of which no label is the name
    assert kinds_among({"dog", "no sound"}) == {}
    with pytest.raises(UsageError, match="'Animal'; it is a kind of sounds, which needs a model"):
        match_labels(["Animal"], ("metal", "classical", "no sound"))
    with pytest.raises(UsageError, match=r"'bicycle'; known are blues, metal$"):
        match_labels(["bicycle"], ("blues", "metal"))


@pytest.mark.long
def test_only_some_objects(tmp_path: Path):
    call = ("detect", ROOM, "--duration", "0.5", "-m", "eventful-vitdet", "--threshold", "0.05")
    everything = records(run(*call, "-f", "jsonl").stdout, "objects")
    labels = {box[5] for r in everything for box in r["boxes"]}
    one = min(labels)
    kept = records(run(*call, "--only", one, "-f", "jsonl").stdout, "objects")
    wanted = [[box for box in r["boxes"] if box[5] == one] for r in everything]
    assert [r["boxes"] for r in kept] == wanted


@pytest.mark.long
def test_commands_that_fit_are_named(tmp_path):
    words = "only sound; try: costream listen "
    refused(4, words + str(STREET), "detect", "-m", "cooadtr", STREET)
    refused(4, f"only video; try: costream detect {ROOM}", "listen", "-m", "cotrans,cosounds", ROOM)
    both = run("listen", STREET, "-m", "cosounds,cooadtr", code=4).stderr
    assert both == f"costream: {STREET}: there is no video stream, only sound\n"
    refused(4, "for skeletons: -m costgcn", "detect", "-m", "cooadtr", SAMPLES / "moves.csv")
    refused(
        4, "for skeletons: -m costgcn", "listen", "-m", "cotrans,cosounds", SAMPLES / "moves.csv"
    )
    refused(2, "a command comes first: costream detect FILE", ROOM)
    refused(2, "no such command 'dectect', did you mean detect?", "dectect", ROOM)
    refused(2, "no such command 'verfy', did you mean verify?", "models", "verfy")
    refused(
        2,
        "is not a folder",
        "watch",
        "-m",
        "cooadtr",
        ROOM,
        "--on",
        "walk",
        "--snapshots",
        STREET / "x",
    )
    for name in ("a.ogg", "b.ogg"):
        (tmp_path / name).write_bytes(STREET.read_bytes() + name.encode())
    lines = run(
        "batch", "-m", "cooadtr", tmp_path, "-o", tmp_path / "out", code=4
    ).stderr.splitlines()
    assert "2 skipped: only sound, and cooadtr takes no sound; try -m cosounds" in lines


@pytest.mark.long
def test_half_precision_where_it_is_possible():
    call = ("detect", "-m", "cooadtr", ROOM, "--duration", "12", "--dtype")
    half, single = (run(*call, dtype, "-f", "jsonl").stdout for dtype in ("float16", "float32"))
    assert records(half)[0]["options"]["dtype"] == "float16"
    pairs = zip(records(half, "prediction"), records(single, "prediction"), strict=True)
    assert all(abs(a["top"][0][1] - b["top"][0][1]) < 0.05 for a, b in pairs)
    refused(
        5,
        "no spectrograms in float16",
        "listen",
        "-m",
        "cotrans,cosounds",
        STREET,
        "--dtype",
        "float16",
    )
    words = "this model cannot be computed in float16; possible are float32"
    refused(5, words, "detect", ROOM, "-m", "eventful-vitdet", "--dtype", "float16")


@pytest.mark.long
def test_evaluate_says_why_frames_and_examples_disagree(tmp_path):
    parts = [(2, 4, "walk"), (20.2, 22.2, "clap"), (26.2, 28, "bend")]
    moves = SAMPLES / "moves.csv"
    lines = [f"{moves},{start},{end},{label}" for start, end, label in parts]
    table = tmp_path / "examples.csv"
    table.write_text("\n".join(["file,start,end,label", *lines]), "utf-8")
    call = ("-m", "costgcn-2d", "--data", table)
    told = " ".join(run("evaluate", *call).stdout.split())
    assert "an example is judged by all its steps together" in told
    assert "'background' competes in the frames" in told
    result = evaluate(*call)
    assert (result["sequences"]["top1"], result["left_out"]) == (1.0, "background")
    frames = result["streams"]
    assert frames["accuracy"] < 0.8
    frames |= {"accuracy": 0.1, "background": 0.85}
    told = " ".join(to_text({"data": "x", **result}).split())
    assert "where it wins 85%, and not in the examples" in told
    assert "A lower --threshold" in told
    frames["accuracy"] = 0.95
    assert "disagree" not in to_text({"data": "x", **result})
