"""``costream read`` and ``costream train`` on text, as users run them."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

import costream
from costream.core.errors import SourceError
from costream.core.records import Alert, Fault, Gap, Prediction, TextLine
from costream.evaluation.text_windows import label_scores
from costream.models.build import save_model
from costream.models.catalogue import load_model
from costream.models.random_init import random_model
from costream.sources.base import ConnectionOptions, SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.file import read_card
from kit.program import costream as program
from kit.program import start
from kit.runs import records, refused, run

SMALL = {"embed_dim": 16, "num_heads": 2, "feedforward": 16, "window": 16, "depth": 1}
SMALL |= {"num_classes": 2, "frontend.token_width": 16, "frontend.buckets": 256}
ERRORS = ("could not open file {}", "connection {} failed", "fatal: no space on disk {}")
LAST = {b"could not open disk\nrequest 1 served\n": "request 1 served"}
LAST |= {b"connection 2 failed\n": "connection 2 failed"}
INFOS = ("started worker {}", "request {} was served", "listening on port {}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled lines and small weights."""
    folder = tmp_path_factory.mktemp("read")
    with open(folder / "lines.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for k in range(30):
            table.writerow([ERRORS[k % 3].format(k), "error"])
            table.writerow([INFOS[k % 3].format(k), "info"])
    save_model(folder / "small.safetensors", *random_model("cotext", "small", SMALL))
    return folder


@pytest.fixture(scope="module")
def levels(folder: Path) -> Path:
    """Weights that tell errors from other lines."""
    path = folder / "levels.safetensors"
    done = run("train", folder / "small.safetensors", "--data", folder / "lines.csv", "-o", path,
               "--steps", 150)  # fmt: skip
    assert done.stdout.splitlines()[0] == f"{path}: other, error, info"
    assert f"next: costream read FILE -m {path}" in done.stdout
    return path


@pytest.mark.slow
def test_lines_of_no_event_are_one_label(folder: Path, tmp_path: Path) -> None:
    table, path = tmp_path / "lines.csv", tmp_path / "o.safetensors"
    lines = [f"{INFOS[k % 3].format(k)},{('none', 'Other', 'info')[k % 3]}" for k in range(30)]
    table.write_text("\n".join(["text,label", *lines]) + "\n", "utf-8")
    small = folder / "small.safetensors"
    done = run("train", small, "--data", table, "-o", path, "--steps", 2)
    assert done.stdout.startswith(f"{path}: Other, info\n")


def test_lines_are_labelled_and_alerts_told(levels: Path, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    told = ["started worker 7", "", "could not open file 5", "connection 9 failed"]
    told += ["request 2 was served"]
    log.write_text("\n".join(told) + "\n", "utf-8")
    rule = ("--on", "error>=0.5 for 1s", "--append", tmp_path / "alerts.jsonl")
    done = run("read", log, "-m", levels, "-f", "lines", *rule)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["0", "2", "3", "4"]
    assert [row[1] for row in rows] == ["info", "error", "error", "info"]
    assert [row[3] for row in rows] == [line for line in told if line]
    assert "app.log: alert at 3 s: error" in done.stderr
    (alert,) = map(json.loads, (tmp_path / "alerts.jsonl").read_text("utf-8").splitlines())
    assert (alert["feed"], alert["since_s"]) == ("app.log", 2.0)
    card = read_card(levels)
    assert (card.background, card.frontend, card.rate_hz) == ("other", "text", 1.0)
    assert "linear on n-grams" in card.metrics["validation"]


def test_lines_of_a_burst_are_segments_of_their_own(levels: Path, tmp_path: Path) -> None:
    burst = ["started worker 7", "connection 9 failed", "request 2 was served"] * 2
    given = ("\n".join(burst) + "\n").encode()
    rule = ("--on", "error>=0.5")
    done = program(
        "read", "-", "-m", levels, "--arrival", "-f", "jsonl", *rule, input=given.decode()
    )
    lines = [r for r in records(done.stdout) if r["type"] == "prediction"]
    segments = [r for r in records(done.stdout) if r["type"] == "segment"]
    assert [s["label"] for s in segments] == ["info", "error", "info", "error", "info"]
    assert [s["start_s"] for s in segments] == [lines[k]["time_s"] for k in (0, 1, 2, 4, 5)]
    assert "error>=0.5: 1 alert held back: one every 30 s at most" in done.stderr


def test_a_pipe_has_the_records_of_a_file(levels: Path, tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("could not open disk\nrequest 3 served\n" * 20, "utf-8")
    text = records(run("read", log, "-m", levels, "-f", "jsonl").stdout)
    piped = program("read", "-", "-m", levels, "-f", "jsonl", input=log.read_text("utf-8"))
    named = {"time_s", "top", "text", "frame", "warmup"}
    for a, b in zip(text, records(piped.stdout), strict=True):
        assert a["type"] == b["type"]
        if a["type"] == "prediction":
            assert {k: a[k] for k in named - {"top"}} == {k: b[k] for k in named - {"top"}}
            assert a["top"][0][1] == pytest.approx(b["top"][0][1], abs=1e-4)
    words = records(
        run("read", log, "-m", levels, "--by", "word", "--end", 2, "-f", "jsonl").stdout
    )
    told = [r for r in words if r["type"] == "prediction"]
    assert [r["text"] for r in told] == ["could", "not", "open", "disk", "request", "3", "served"]
    assert [r["frame"] for r in told] == [0] * 4 + [1] * 3
    # After the last word of a line as after the line.
    assert told[3]["top"][0] == pytest.approx(text[1]["top"][0], abs=1e-4)


def test_lines_together_equal_lines_alone_and_words(levels: Path) -> None:
    model = load_model(str(levels), dtype="float64")
    lines = [f"request {k} failed on disk {k}" for k in range(9)]
    items = [TextLine(k, float(k), line) for k, line in enumerate(lines)]
    together = model.steps(items, model.init_state())
    state, batch = model.init_state(), model.init_state(2)
    for k, item in enumerate(items):
        alone = model.step([item], state)
        both = model.step([item, items[-1 - k]], batch)
        np.testing.assert_allclose(alone.probabilities, together[k].probabilities, atol=1e-6)
        np.testing.assert_allclose(both.probabilities[:1], alone.probabilities, atol=1e-6)
        assert alone.warmup == together[k].warmup == both.warmup[:1]
    state = model.init_state()
    for k, line in enumerate(lines):
        words = line.split()
        for place, word in enumerate(words):
            item = TextLine(k, float(k), word, place == len(words) - 1)
            result = model.step([item], state)
        np.testing.assert_allclose(result.probabilities, together[k].probabilities, atol=1e-6)


@pytest.mark.long
def test_mistakes_are_reported(levels: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "binary.bin").write_bytes(b"a line\n\0\1\2")
    (tmp_path / "wide.txt").write_bytes("höher".encode("utf-16"))
    refused(4, "the file is empty", "read", tmp_path / "empty.txt", "-m", levels)
    refused(4, "contains zero bytes", "read", tmp_path / "binary.bin", "-m", levels)
    refused(4, "iconv -f UTF-16", "read", tmp_path / "wide.txt", "-m", levels)
    refused(4, "no such file", "read", tmp_path / "none.txt", "-m", levels)
    (tmp_path / "a.txt").write_text("words\n")
    refused(2, "Missing option '-m'", "read", tmp_path / "a.txt")
    refused(2, "only rules about labels", "read", tmp_path / "a.txt", "-m", levels, "--on", "lost")
    refused(4, "takes video, not text", "read", tmp_path / "a.txt", "-m", "cooadtr")
    refused(4, "takes text, not video", "detect", "samples/room.mp4", "-m", levels)
    (tmp_path / "bad.csv").write_text("text,label\nonly this,\n")
    train = ("train", levels, "-o", tmp_path / "x.safetensors", "--data")
    refused(2, "without text or label: 2", *train, tmp_path / "bad.csv")
    (tmp_path / "one.csv").write_text("text,label\na b,x\nc d,x\n")
    refused(2, "only one label", *train, tmp_path / "one.csv")
    refused(2, "no column text, label", *train, tmp_path / "a.txt")


def test_bytes_that_are_not_text_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\xff\xfe? second\n" + b"x\xc3\xa4" * 10_000 + b"\nlast")
    source = open_source(str(path), SourceOptions(text="line"))
    info = source.open()
    items = list(source.items())
    source.close()
    lines = [item for item in items if isinstance(item, TextLine)]
    assert (info.kind, info.live, source.errors) == ("text", False, 2)
    assert lines[0].text == "first"
    assert lines[1].text == "\ufffd\ufffd? second"
    assert set(lines[2].text) == {"x", "ä"}
    assert len(lines[2].text.encode()) in (16_383, 16_384)
    assert (lines[3].text, lines[3].time_s) == ("last", 3.0)
    assert sum(item.count for item in items if isinstance(item, Fault)) == 2


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_lines_are_reported_as_they_come_until_ctrl_c(levels: Path) -> None:
    reading = start("read", "-", "-m", levels, "-f", "lines", stdin=subprocess.PIPE)
    assert reading.stdin
    assert reading.stdout
    for line in (b"request 1 served\n", b"could not open disk\n"):
        reading.stdin.write(line)
        reading.stdin.flush()
        assert reading.stdout.readline().endswith(b"\t" + line)
    reading.send_signal(signal.SIGINT)
    assert reading.wait(90) == 130
    reading.stdin.close()
    reading.stdout.close()
    assert reading.stderr
    reading.stderr.close()


FOLLOWING = SourceOptions(text="line", connecting=ConnectionOptions(follow=True))


def texts(items: list) -> list[str]:
    return [item.text for item in items if isinstance(item, TextLine)]


def test_a_growing_file_is_followed_when_it_is_replaced_and_emptied(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("before\n")
    source = open_source(str(log), FOLLOWING)
    assert source.open().live
    items = source.items()
    with open(log, "a") as file:
        file.write("one\ntwo")
    first = next(items)
    with open(log, "a") as file:
        file.write(" and a half\n")
    log.rename(tmp_path / "app.log.1")
    log.write_text("three\n")
    rest = [next(items), next(items)]
    log.write_text("4\n")  # emptied
    rest.append(next(items))
    source.stop()
    assert texts([first, *rest, *items]) == ["one", "two and a half", "three", "4"]
    source.close()
    with pytest.raises(SourceError, match="No such file"):
        open_source(str(tmp_path / "none.log"), FOLLOWING).open()


def test_a_server_of_lines_is_watched_and_connected_to_again(levels: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        found: list = []
        with costream.watch(uri, str(levels), on=["error>=0.5"]) as feeds:
            for sent in (b"could not open disk\nrequest 1 served\n", b"connection 2 failed\n"):
                link = None
                for feed in feeds:
                    if link is None:  # after the header, or the gap
                        link, _ = server.accept()
                        link.sendall(sent)
                    found.append(feed.record)
                    if isinstance(feed.record, Prediction) and feed.record.text == LAST[sent]:
                        break
                assert link is not None
                link.close()
            status = feeds.status
    predictions = [r for r in found if isinstance(r, Prediction)]
    assert [r.text for r in predictions] == [
        "could not open disk",
        "request 1 served",
        "connection 2 failed",
    ]
    assert [r.top[0][0] for r in predictions] == ["error", "info", "error"]
    assert any(isinstance(r, Alert) for r in found)
    assert any(isinstance(r, Gap) for r in found)
    assert status is not None


def test_a_restart_is_not_a_gap_of_the_feed(levels: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for pause_s in (0.0, 3.0):
            time.sleep(pause_s)
            with costream.watch(uri, str(levels), on=["gap>=3s"], state_dir=tmp_path) as feeds:
                next(feeds)
                link, _ = server.accept()
                with link:
                    Timer(0.6, link.sendall, [b"connection 2 failed\n"]).start()
                    while not isinstance(record := next(feeds).record, Prediction):
                        assert not isinstance(record, Alert)
            assert record.time_s > pause_s


def test_python_reads_lines_and_streams_of_them(levels: Path, tmp_path: Path) -> None:
    lines = ["could not open disk", "", "request 3 served"]
    (tmp_path / "a.txt").write_text("\n".join(lines), "utf-8")
    model = costream.load_model(str(levels))
    results = costream.read(lines, model, on=["error>=0.5"]).collect()
    told = [(p.time_s, p.text, p.top[0][0]) for p in results.predictions]
    assert told == [(0.0, lines[0], "error"), (2.0, lines[2], "info")]
    assert any(isinstance(r, Alert) for r in results.records)
    filed = costream.read(tmp_path / "a.txt", model).collect().predictions
    with model.stream() as stream:
        stepped = [r for line in lines for r in stream.step(line) if isinstance(r, Prediction)]
    for a, b, c in zip(results.predictions, filed, stepped, strict=True):
        assert a.time_s == b.time_s == c.time_s
        assert dict(a.top) == pytest.approx(dict(b.top), abs=1e-4)
        assert dict(a.top) == pytest.approx(dict(c.top), abs=1e-4)
    with pytest.raises(SourceError, match="takes video, not text"):
        costream.read(lines, "cooadtr")


def test_lines_are_evaluated_with_windows_of_their_length(levels: Path, folder: Path) -> None:
    asked = ("evaluate", "-m", levels, "--data", folder / "lines.csv", "--json")
    whole = json.loads(run(*asked).stdout)
    assert whole["examples"] == whole["streams"]["frames"] == 60
    assert whole["sequences"]["top1_background"] > 0.9
    glue = json.loads(run(*asked, "--protocol", "glue").stdout)
    model = load_model(str(levels))
    rows = csv.reader((folder / "lines.csv").read_text("utf-8").splitlines()[1:])
    lengths = [len(model.frontend.prepare(TextLine(0, 0.0, text))) for text, _ in rows]
    mean = np.mean(lengths)
    assert [w["window"] for w in glue["windows"]] == [round(f * mean) for f in (0.5, 1, 2)]
    assert all(w["accuracy"] > 0.9 and w["matthews"] > 0.8 for w in glue["windows"])
    assert glue["windows"][0]["dense_macs"] < glue["windows"][2]["dense_macs"]
    refused(2, "is for text", "evaluate", "-m", "cooadtr", *asked[3:], "--protocol", "glue")


def test_scores_of_glue() -> None:
    counts = np.array([[6, 2, 0], [1, 11, 0], [0, 0, 0]])
    true, said = np.repeat([0, 0, 1, 1], [6, 2, 1, 11]), np.repeat([0, 1, 0, 1], [6, 2, 1, 11])
    scores = label_scores(counts)
    assert scores["accuracy"] == pytest.approx(17 / 20)
    assert scores["f1"] == pytest.approx(f1_score(true, said, average="macro"))
    assert scores["matthews"] == pytest.approx(matthews_corrcoef(true, said))


@pytest.mark.long
def test_a_tokenizer_json_is_part_of_the_weights(folder: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=120, special_tokens=["?"])
    made.train_from_iterator([*ERRORS, *INFOS], trainer)
    rules = tmp_path / "tokenizer.json"
    made.save(str(rules))
    sizes = {k: v for k, v in SMALL.items() if k != "frontend.buckets"}
    chosen = random_model("cotext", "own", {**sizes, "frontend.file": str(rules)}, "tokenizer")
    save_model(tmp_path / "own.safetensors", *chosen)
    rules.unlink()
    path = tmp_path / "levels.safetensors"
    run("train", tmp_path / "own.safetensors", "--data", folder / "lines.csv", "-o", path,
        "--steps", 150)  # fmt: skip
    model = load_model(str(path))
    ids = made.encode("could not open worker").ids
    rows = model.frontend.prepare(TextLine(0, 0.0, "could not open worker"))
    assert rows[:, 0].tolist() == [*(k + 1 for k in ids), made.get_vocab_size() + 1]
    found = costream.read(["fatal: no space on disk 7", "started worker 8"], str(path)).collect()
    assert [p.top[0][0] for p in found.predictions] == ["error", "info"]
    wrong = (
        "models",
        "init",
        "cotext",
        "--frontend",
        "tokenizer",
        "-o",
        tmp_path / "x.safetensors",
    )
    refused(2, "needs a file", *wrong)
    refused(2, "is not a tokenizer.json", *wrong, "--set", f"frontend.file={folder / 'lines.csv'}")
