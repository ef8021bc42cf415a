"""Hostile files by the thousand, the commands that read them, and what must not happen."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np

from costream.weights_io.file import read_header
from kit import data_audio, data_skeleton, data_video
from kit.media import make_audio, make_video
from kit.mutations import TEXTS, damaged, document, retold, revalued
from kit.processes import Forks, Streams
from kit.program import environment

LIMITS = {"RLIMIT_CPU": 20, "RLIMIT_AS": 6 << 30, "RLIMIT_FSIZE": 1 << 28, "RLIMIT_CORE": 0}
LONGEST = 6000  # bytes of messages
VIDEO, SOUND = ("avi", "flv", "mkv", "mp4", "mpg", "ts"), ("flac", "mp3", "ogg", "wav")
Files = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """Files in an empty folder, and a command there."""

    files: Files
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


def _run_of(
    case: Case, folder: Path, streams: Streams
) -> tuple[list[str], Streams, dict[str, str], Path]:
    home = {"XDG_CACHE_HOME": str(folder / "home"), **dict(case.env)}
    return [*case.args], streams, environment(home), folder


def _judge(code: int, shown: bytes, said: bytes) -> str:
    """Return what must not happen of what a run wrote to its streams, or ''."""
    tail = said[-300:].decode("utf-8", "replace")
    text = said.decode("utf-8", "replace")
    if code < 0 or code == 1:
        return f"exit {code}: {tail!r}"
    if code and not said:
        return f"exit {code} without a word"
    if "Traceback" in text:
        return f"a traceback: {tail!r}"
    if not all(c.isprintable() or c == "\n" for c in text) or b"\x1b" in shown:
        return f"a control character: {tail!r} {shown[-200:]!r}"
    return f"{len(said)} bytes of messages: {said[:200]!r}" if len(said) > LONGEST else ""


class Hostile:
    """Makes cases of every category from sound files, and runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._forks = folder, Forks(environment())
        self._sound: Files = {}
        self._make()

    def close(self) -> None:
        """End the process that forks."""
        self._forks.close()

    def case(self, category: str, seed: int) -> Case:
        """Return a case; the same one for the same seed."""
        return CATEGORIES[category](self, random.Random(f"{category} {seed}"))

    def failure(self, case: Case) -> str:
        """Run a case in a process of its own; return what happened that must not, or ''."""
        with self._folders([case]) as ((folder,), streams):
            _, out, err = streams
            try:
                code = self._forks.run(*_run_of(case, folder, streams), 300, LIMITS)
            except TimeoutExpired:
                return "it did not end"
            out.seek(0)
            err.seek(0)
            return _judge(code, out.read(1 << 20), err.read())

    def failures(self, cases: Sequence[Case]) -> dict[int, str]:
        """Run cases, most of them in one process; return what happened that must not, by place.

        What fails or does not end there is run alone, and that is what counts.
        """
        doubtful = []
        with self._folders(cases) as (folders, streams):
            runs = [_run_of(*each, streams) for each in zip(cases, folders, strict=True)]
            in_turn = [(args, env, str(cwd)) for args, _, env, cwd in runs]
            self._forks.run_each(in_turn, streams, 300, LIMITS)
            for place, folder in enumerate(folders):
                said = {end: Path(f"{folder}.{end}") for end in ("code", "out", "err")}
                if not said["code"].exists() or _judge(
                    int(said["code"].read_text()),
                    said["out"].read_bytes()[: 1 << 20],
                    said["err"].read_bytes(),
                ):
                    doubtful.append(place)
        alone = {place: self.failure(cases[place]) for place in doubtful}
        return {place: why for place, why in alone.items() if why}

    @contextmanager
    def _folders(self, cases: Sequence[Case]) -> Iterator[tuple[list[Path], Streams]]:
        """Make a folder with the files of each case, and files for the streams of a process."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as whole,
            tempfile.TemporaryFile() as none,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            folders = [Path(whole, str(place)) for place in range(len(cases))]
            for case, folder in zip(cases, folders, strict=True):
                folder.mkdir()
                for name, data in case.files.items():
                    (folder / name).write_bytes(data)
            yield folders, (none, out, err)

    def _make(self) -> None:
        """Write the files that cases are made of."""
        here, files = self.folder, self._sound
        data_video.write_tiny_weights(here / "video.safetensors")
        data_audio.write_tiny_weights(here / "sound.safetensors")
        data_skeleton.write_tiny_weights(here / "joints.safetensors")
        for ending in VIDEO:
            codec = {"mpg": "mpeg2video", "flv": "flv"}.get(ending, "libx264")
            make_video(here / f"v.{ending}", 12, size=(64, 48), codec=codec)
        data_audio.write_sound(here / "s.wav", "tone", 0, 1.0)
        for ending in SOUND[:3]:
            make_audio(here / f"s.{ending}", 1.0)
        data_skeleton.write_act(here / "j.csv", "wave", 0, 12)
        np.save(here / "f.npy", np.ones((6, 32), np.float32))
        np.savez_compressed(here / "f.npz", rgb=np.ones((6, 16)), flow=np.ones((6, 16)))
        for path in here.iterdir():
            files[path.name] = path.read_bytes()
        files["f.pkl"] = pickle.dumps({"v": {"rgb": np.ones((6, 32))}}, 4)
        for name in ("video", "joints"):
            header = read_header(here / f"{name}.safetensors")
            files[f"{name}.card"] = header.metadata["card"].encode()

    def path(self, name: str) -> str:
        """Return the path of a sound file."""
        return str(self.folder / name)


def _media(made: Hostile, chance: random.Random) -> Case:
    video = chance.random() < 0.6
    name = f"v.{chance.choice(VIDEO)}" if video else f"s.{chance.choice(SOUND)}"
    model = made.path("video.safetensors" if video else "sound.safetensors")
    command = "detect" if video else "listen"
    given = damaged(made._sound[name], chance)
    return Case({name: given}, (command, name, "-m", model, "-o", "-"))


def _pickle(made: Hostile, chance: random.Random) -> Case:
    weights: Any = {f"layer{k}.weight": np.ones((2, 3), np.float32) for k in range(3)}
    value = chance.choice(({"state_dict": weights, "epoch": 3}, {"v": {"rgb": np.ones((6, 32))}}))
    data = damaged(pickle.dumps(value, chance.choice((2, 4))), chance)
    if chance.random() < 0.5:
        return Case({"x.pkl": data}, ("models", "import", "x.pkl", "--name", "q"))
    model = made.path("video.safetensors")
    return Case({"x.pkl": data}, ("detect", "x.pkl", "-m", model, "--fps", "8", "-o", "-"))


def _torch(made: Hostile, chance: random.Random) -> Case:
    import torch

    out = io.BytesIO()
    value = {"model": {"0.weight": torch.arange(6.0).reshape(2, 3)}, "args": {"lr": 0.1}}
    torch.save(value, out, _use_new_zipfile_serialization=chance.random() < 0.6)
    return Case({"x.pth": damaged(out.getvalue(), chance)}, ("models", "import", "x.pth"))


def _array(made: Hostile, chance: random.Random) -> Case:
    name = chance.choice(("f.npy", "f.npz"))
    data = made._sound[name]
    if name == "f.npy" and chance.random() < 0.5:
        head = retold(data[10:128].decode(), chance)
        data = data[:8] + struct.pack("<H", len(head) % 65536) + head + data[128:]
    else:
        data = damaged(data, chance)
    args = ("detect", name, "-m", made.path("video.safetensors"), "--fps", "8", "-o", "-")
    if chance.random() < 0.3:
        args = ("detect", name, "-m", made.path("joints.safetensors"), "--layout", "body-15")
    return Case({name: data}, args)


def _weights(made: Hostile, chance: random.Random) -> Case:
    """A weight file whose header, or the card in it, was changed."""
    name = chance.choice(("video", "joints"))
    data = made._sound[f"{name}.safetensors"]
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    if chance.random() < 0.7:
        card = json.loads(header["__metadata__"]["card"])
        header["__metadata__"]["card"] = document(card, chance, 1).decode()
        text = json.dumps(header).encode()
    elif chance.random() < 0.6:
        text = document(header, chance, 1)
    else:
        text = damaged(data[8 : 8 + length], chance)
    file = f"{name}.safetensors"
    whole = {file: len(text).to_bytes(8, "little") + text + rest}
    source = made.path("j.csv" if name == "joints" else "f.npy")
    run = ("detect", source, "-m", file, "-o", "-", *(() if name == "joints" else ("--fps", "8")))
    show = ("models", "show", f"./{file}", *chance.choice(((), ("--full",), ("--json",))))
    return Case(whole, chance.choice((show, show, run)))


_TOML = """device = "cpu"
[detect]
top-k = 5
threshold = 0.5
format = ["jsonl", "csv"]
model = "cooadtr"
start = "0:01"
layout = "body-15"
columns = "x,y,z"
budget = "0.5x"
only = ["a", "b*"]
"""
_FEEDS = """user = "viewer"
password = "word"
on = ["fall>=0.8 for 2s"]
[[feed]]
name = "door"
url = "nothing.mp4"
timeout = 20
channel = 1
"""
_LIST = """[net]
url = "http://127.0.0.1:9/net.pth"
megabytes = 1
licence = "MIT"
source = "nobody"
sha256_prefix = "ab"
note = "a note"
[net.import]
labels = "thumos14"
"""
_VARIABLES = ("FPS", "THRESHOLD", "TOP_K", "START", "FORMAT", "COLUMNS", "LAYOUT", "BUDGET")
_VARIABLES += ("THREADS", "MODEL", "WEIGHTS", "DEVICE", "DTYPE", "CONFIG", "MIN_GAP", "TOKENS")


def _settings(made: Hostile, chance: random.Random) -> Case:
    run = ("detect", "-m", "cooadtr", "nothing.mp4")
    match chance.randrange(5):
        case 0:
            return Case({"c.toml": retold(_TOML, chance)}, (*run, "-c", "c.toml"))
        case 1:
            return Case({"costream.toml": damaged(_TOML.encode(), chance)}, run)
        case 2:
            lists = {"l.toml": retold(_LIST, chance)}
            name = chance.choice(((), (), ("net", "--accept-licence", "--offline")))
            return Case(lists, ("models", "fetch", "--list", "l.toml", *name))
        case 3:
            args = ("watch", "f.toml", "-o", "log", "-m", made.path("video.safetensors"))
            return Case({"f.toml": retold(_FEEDS, chance)}, args)
        case _:
            value = retold(chance.choice(("5", "0.5", "1:02", "a,b", "40ms")), chance)
            text = value.decode("utf-8", "surrogateescape").replace("\0", "")[:100_000]
            name = f"COSTREAM_{chance.choice(_VARIABLES)}"
            return Case({}, run, ((name, text),))


def _table(made: Hostile, chance: random.Random) -> Case:
    text = made._sound["j.csv"].decode()
    lines = text.splitlines()
    match chance.randrange(8):
        case 0:
            data = damaged(text.encode(), chance)
        case 1:  # a row of very many columns
            data = "\n".join([*lines[:3], ",".join(["1.5"] * 200_000), *lines[3:]]).encode()
        case 2:
            data = "\n".join([lines[0] + ",x" * 50_000, *lines[1:]]).encode()
        case _:
            data = retold(text, chance)
    return Case({"j.csv": data}, ("detect", "j.csv", "-m", made.path("joints.safetensors")))


_POSES = {
    "data": [
        {"frame_index": t, "skeleton": [{"pose": [0.5] * 36, "score": [0.9] * 18}]}
        for t in range(4)
    ],
    "label": "wave",
    "label_index": 1,
}


def _skeletons(made: Hostile, chance: random.Random) -> Case:
    if chance.random() < 0.5:
        files = {"k.json": document(_POSES, chance)}
        args = ("detect", "k.json", "-m", made.path("joints.safetensors"), "--fps", "8")
        return Case(files, args)
    joints = "0.1 0.2 3.0 1 2 3 4 1 0 0 0 2\n" * 25
    text = "3\n" + f"1\n72057594037900000 0 1 1 1 1 0 0.01 -0.02 2\n25\n{joints}" * 3
    data = retold(text, chance) if chance.random() < 0.7 else damaged(text.encode(), chance)
    return Case({"n.skeleton": data}, ("detect", "n.skeleton", "-m", "costgcn"))


def _rows(count: int = 6) -> list[dict[str, Any]]:
    head: dict[str, Any] = {
        "type": "header",
        "schema": "costream/1",
        "version": "1",
        "model": "m",
        "labels": ["none", "walk"],
        "background": "none",
        "rate_hz": 4.0,
        "delay_s": 0.0,
        "source": "v.mp4",
        "kind": "video",
        "duration_s": 9.0,
        "options": {"threshold": 0.5},
    }
    rows = [head]
    for i in range(count):
        top, ms = [["walk", 0.9], ["none", 0.1]], {"decode": 1.0, "network": 2.0}
        at = {"i": i, "time_s": i / 4}
        rows.append({"type": "prediction", **at, "frame": i, "top": top, "scores": [0.1, 0.9]})
        rows.append({"type": "compute", **at, "macs": 1000, "dense_macs": 9000, "ms": ms})
    rows.append({"type": "gap", "start_s": 1.0, "end_s": 1.5, "reason": "nothing"})
    rows.append({"type": "error", "time_s": 1.0, "message": "bad", "fatal": False, "count": 2})
    rows.append({"type": "segment", "start_s": 0.0, "end_s": 1.0, "label": "walk", "score": 0.9})
    rows.append({"type": "summary", "steps": count, "media_s": 2.0, "wall_s": 1.0, "exit": 0})
    return rows


def _results(made: Hostile, chance: random.Random) -> Case:
    rows = _rows()
    if chance.random() < 0.7:
        for _ in range(chance.choice((1, 1, 2))):
            k = chance.randrange(len(rows))
            rows[k] = revalued(rows[k], chance, 1)
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    else:
        data = damaged("".join(json.dumps(row) + "\n" for row in rows).encode(), chance)
    whole = "".join(json.dumps(row) + "\n" for row in _rows()).encode()
    files = {"v.mp4.jsonl": data, "w.jsonl": whole, "v.csv": b"start_s,end_s,label\n0,1,walk\n"}
    commands = (
        ("report", "v.mp4.jsonl", "--no-thumbnails"),
        ("report", "--diff", "v.mp4.jsonl", "w.jsonl"),
        ("report", "--diff", "w.jsonl", "v.mp4.jsonl", "--json"),
        ("evaluate", "--results", "v.mp4.jsonl", "--labels", "v.csv"),
    )
    return Case(files, chance.choice(commands))


_LABELS = {
    "a.txt": "0.5\t1.5\twalk\n2.0\t3.0\tsit down\n",
    "a.csv": "start_s,end_s,label\n0.5,1.5,walk\n2.0,3.0,sit\n",
    "a.tsv": "file\tstart\tend\tlabel\nv.mp4\t0.5\t1.5\twalk\n",
    "a.srt": "1\n00:00:00,500 --> 00:00:01,500\nwalk (90 %)\n\n2\n00:00:02,0 --> 00:00:03,0\nsit\n",
    "a.vtt": "WEBVTT\n\n00:00.500 --> 00:01.500\nwalk\n",
    "a.rttm": "SPEAKER v 1 0.5 1.0 <NA> <NA> walk <NA> <NA>\n",
    "a.eaf": '<ANNOTATION_DOCUMENT><TIME_ORDER><TIME_SLOT TIME_SLOT_ID="t1" TIME_VALUE="500"/>'
    '<TIME_SLOT TIME_SLOT_ID="t2" TIME_VALUE="1500"/></TIME_ORDER><TIER TIER_ID="a"><ANNOTATION>'
    '<ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="t1" TIME_SLOT_REF2="t2">'
    "<ANNOTATION_VALUE>walk</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER>"
    "</ANNOTATION_DOCUMENT>",
}
_DOCUMENTS: tuple[Any, ...] = (
    {"database": {"v": {"subset": "a", "annotations": [{"segment": [1, 2], "label": "walk"}]}}},
    {"v": {"subset": "a", "duration": 9.0, "actions": [[1, 2.0, 3.0]]}},
    {"fps": 4, "classes": ["none", "walk"], "videos": [{"video": "v", "labels": [0, 1]}]},
    {"fps": 4, "frames": 9, "segments": [{"label": "walk", "start": 1, "end": 2}]},
)
_COCO = {
    "images": [{"id": 1, "file_name": "v_000001.jpg", "width": 64, "height": 48}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 10, 12]}],
    "categories": [{"id": 1, "name": "walk"}],
}


def _labels(made: Hostile, chance: random.Random) -> Case:
    rows = "".join(json.dumps(row) + "\n" for row in _rows()).encode()
    kind = chance.random()
    files: Files
    if kind < 0.6:
        name, text = chance.choice(list(_LABELS.items()))
        changed = retold(text, chance) if chance.random() < 0.7 else damaged(text.encode(), chance)
        files = {name: changed}
    elif kind < 0.85:
        files = {"a.json": document(chance.choice(_DOCUMENTS), chance)}
    elif kind < 0.95:
        files = {"a.json": document(_COCO, chance, 1)}
    else:
        out = io.BytesIO()
        np.savez(out, labels=np.eye(2, dtype=int), rate_hz=4.0, names=["none", "walk"])
        files = {"a.npz": damaged(out.getvalue(), chance)}
    (name,) = files
    given = {**files, "v.jsonl": rows}
    args: tuple[str, ...] = ("evaluate", "--results", "v.jsonl", "--labels", name)
    if (name == "a.json" and kind >= 0.85) or chance.random() < 0.1:
        model = made.path("video.safetensors")
        args = ("train", model, "--data", made.path("v.mp4"), "--labels", name, "--steps", "1")
    return Case(given, args)


def _names(made: Hostile, chance: random.Random) -> Case:
    """Names of files, of models and of options."""
    name = chance.choice(TEXTS).replace("\0", "")[:120_000]
    name = name.encode("utf-8", "ignore").decode() if "\ud800" in name else name
    return Case(
        {},
        chance.choice(
            (
                ("detect", "-m", "cooadtr", name),
                ("detect", "v.mp4", "-m", name),
                ("detect", "-m", "cooadtr", "v.mp4", "--weights", name),
                ("models", "show", name),
                ("models", "fetch", name),
                ("models", "path", name),
                ("models", "import", name),
                ("report", name),
                ("report", "--diff", name, name),
                ("evaluate", "--results", name, "--labels", name),
                ("watch", "-m", "cooadtr", name, "-o", name or "log", "--reconnect", "0"),
                ("batch", "-m", "cooadtr", name, "-o", "out"),
                ("detect", "-m", "cooadtr", "v.mp4", "--layout", name),
                ("detect", "-m", "cooadtr", "v.mp4", "--log-file", name),
                ("listen", "-m", "cotrans,cosounds", name, "-o", name),
                ("help", name),
                (name,),
            )
        ),
    )


CATEGORIES: dict[str, Callable[[Hostile, random.Random], Case]] = {
    "arrays": _array,
    "labels": _labels,
    "media": _media,
    "names": _names,
    "pickles": _pickle,
    "results": _results,
    "settings": _settings,
    "skeletons": _skeletons,
    "tables": _table,
    "torch": _torch,
    "weights": _weights,
}
