"""``costream models`` as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from costream.models.build import save_model
from costream.models.oad.cooadtr import CoOadTR
from costream.weights_io.card import Card
from costream.weights_io.file import read_card
from kit.foreign_actions import foreign
from kit.paths import SHIPPED
from kit.program import python
from kit.runs import refused, run

ARGUMENTS = {"input_width": 6, "num_classes": 22, "embed_dim": 8, "num_heads": 2, "feedforward": 8}
NO_TORCH = (
    "import sys; from costream.__main__ import main; code = main(sys.argv[1:])\n"
    "print(sorted(m for m in ('torch', 'numpy') if m in sys.modules), file=sys.stderr)\n"
    "sys.exit(code)"
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The place of the cache; nothing of the user's own is seen."""
    return tmp_path / "home"


@pytest.fixture
def cache(home: Path) -> Path:
    if sys.platform == "win32":
        return home / "costream" / "cache" / "weights"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "costream" / "weights"
    return home / "costream" / "weights"


def places(home: Path) -> dict[str, Any]:
    """The environment and the folder of a run with this cache."""
    env = dict.fromkeys(("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"), str(home))
    return {"env": env, "cwd": home.parent}


def models(home: Path, *args: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run("models", *args, code=code, **places(home))


def without_torch(home: Path, *args: object) -> str:
    """Return what a command prints that loads neither PyTorch nor NumPy."""
    done = python("-c", NO_TORCH, "models", *args, **places(home))
    assert (done.returncode, done.stderr) == (0, "[]\n")
    return done.stdout


def own(path: Path, **changes: Any) -> Path:
    arguments = {**ARGUMENTS, "window": 4}
    labels = tuple(f"class {k}" for k in range(22))
    fields: dict[str, Any] = {
        "name": path.stem,
        "task": "online action detection",
        "architecture": "cooadtr",
        "arguments": arguments,
        "labels": labels,
        "rate_hz": 4.0,
        "description": "Made for a test: café ☕",
        "metrics": {"mAP": 0.25},
    }
    save_model(path, Card(**{**fields, **changes}), CoOadTR(**arguments))
    return path


@pytest.mark.parametrize(
    "args", [["list", "--all"], ["list", "--json"], ["--help"], ["import", "--help"]]
)
def test_overviews_need_no_torch(home: Path, cache: Path, args: list[str]) -> None:
    own(cache / "kitchen.safetensors")
    out = without_torch(home, *args)
    if args == ["list", "--json"]:
        rows = {row["name"]: row for row in json.loads(out)}
        assert rows["kitchen"]["origin"] == "cache"
        assert {"cooadtr", "cooadtr-b2", "oadtr"} < rows.keys()
    elif args == ["list", "--all"]:
        lines = out.splitlines()
        heads = [line for line in lines if line[0] != " "]
        assert heads[0] == "Actions in video"
        assert heads[-1] == "Networks without weights here"
        assert {"Sounds", "Objects in video"} < set(heads)
        assert any(re.fullmatch(r"  kitchen +unknown +\d\.\d MB +22 labels: .*", x) for x in lines)
        assert any(
            re.fullmatch(r"  yamnet +free +15 MB +to fetch +521 labels: .*", x) for x in lines
        )
    else:
        assert out.startswith("Usage: ")


def test_show(home: Path, cache: Path) -> None:
    file = own(cache / "kitchen.safetensors")
    out = without_torch(home, "show", "kitchen", "--full")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["file"] == str(file)
    assert lines["description"] == "Made for a test: café ☕"
    assert lines["metrics"] == "mAP=0.25"
    assert lines["labels"].startswith("22: class 0, class 1, ")
    found = json.loads(models(home, "show", file, "--json").stdout)
    assert found["labels"][21] == "class 21"
    assert found["tensors_sha256"] == lines["sha256"]
    assert found["parameters"] == sum(
        p.numel() for p in CoOadTR(**ARGUMENTS, window=4).parameters()
    )


def test_a_list_has_only_what_a_licence_class_allows(home: Path, cache: Path) -> None:
    own(cache / "kitchen.safetensors", licence="MIT", licence_class="free")
    own(cache / "garden.safetensors", licence_class="non-commercial")
    own(cache / "unknown.safetensors")

    def listed(licence: str) -> dict[str, str]:
        found = json.loads(models(home, "list", "--json", "--licence", licence).stdout)
        return {model["name"]: model["licence_class"] for model in found}

    free, some, every = map(listed, ("free", "non-commercial", "any"))
    assert {"kitchen", "mn04"} <= free.keys()
    assert set(free.values()) == {"free"}
    assert some.keys() - free.keys() >= {"garden"}
    assert set(some.values()) == {"free", "non-commercial"}
    assert {"cooadtr", "unknown"} <= every.keys() - some.keys()
    assert "cooadtr" not in models(home, "list", "--licence", "free").stdout


@pytest.mark.slow
def test_short_lists_and_cards(home: Path, cache: Path) -> None:
    """What is here and what it is for, on 80 columns and without the paths of files."""
    own(cache / "kitchen.safetensors", limits="Not for use. " * 9, licence="MIT", background=None)
    done = models(home, "list")
    assert {"cooadtr", "kitchen"} < {line.split()[0] for line in done.stdout.splitlines()}
    assert re.search(
        r"^  cooadtr +research +4\.8 MB +56\.4 MMAC  6 labels: walk, ", done.stdout, re.M
    )
    assert "miniroad" not in done.stdout
    assert str(cache) not in done.stdout
    assert re.fullmatch(r"\d+ more without weights here: costream models list --all\n", done.stderr)
    every = models(home, "list", "--all")
    assert ("miniroad" in every.stdout, every.stderr) == (True, "")
    names = ("kitchen", "cooadtr", "costgcn", "mn04")
    cards = [models(home, "show", name).stdout for name in names]
    for text in (done.stdout, every.stdout, *(c[: c.index("weights")] for c in cards)):
        assert max(map(len, text.splitlines())) <= 80
    keys = [line.split(" ")[0] for line in cards[0].splitlines() if line[0] != " "]
    assert keys == ["model", "knows", "limits", "licence", "takes", "weights"]
    assert "22 labels: class 0, class 1, " in cards[0]
    assert "video, 8 steps a second\nstep     56.4 MMAC of 80.0 MMAC dense" in cards[1]
    assert "takes    sound, 2 steps a second" in cards[3]
    assert all(len(card.splitlines()) <= 26 for card in cards)


@pytest.mark.long
def test_what_a_step_takes_here_and_what_is_damaged(home: Path, cache: Path) -> None:
    own(cache / "kitchen.safetensors")
    (cache / "broken.safetensors").write_bytes(b"<html>")
    env = {**places(home)["env"], "COSTREAM_WEIGHTS": ""}
    out = run("models", "list", "--time", env=env, cwd=home.parent).stdout
    assert re.search(r"^  kitchen +unknown +\d\.\d MB +[\d.]+ ms  22 labels", out, re.M)
    assert re.search(r"^Damaged\n  broken ", out, re.M)


def test_what_can_be_fetched_in_short(home: Path) -> None:
    done = models(home, "fetch")
    assert re.search(r"^Sounds\n  yamnet +15 MB  521 labels: Speech, ", done.stdout, re.M)
    assert "eventful-vid" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "costream models fetch --all\n" in done.stderr
    assert "eventful-vid" in models(home, "fetch", "--all").stdout


def test_import_then_verify(home: Path, cache: Path) -> None:
    home.mkdir()
    checkpoint = foreign(home.parent)
    args = ["import", checkpoint, "--name", "mine", "--config", "labels=thumos14"]
    done = models(home, *args)
    assert done.stdout == f"{cache / 'mine.safetensors'}\n"
    assert done.stderr.count("\n") == 1
    assert read_card(cache / "mine.safetensors").labels[1] == "BaseballPitch"

    words = "exists already; use --name, -o or --overwrite"
    refused(2, words, "models", *args, **places(home))
    before = (cache / "mine.safetensors").read_bytes()
    models(home, *args, "--overwrite", "--as", "cooadtr")
    assert (cache / "mine.safetensors").read_bytes() == before

    assert models(home, "verify", "mine").stdout == f"ok    {cache / 'mine.safetensors'}\n"


def test_verify_lists_every_file_and_fails_with_5(home: Path, cache: Path) -> None:
    good, other = own(cache / "good.safetensors"), own(cache / "damaged.safetensors")
    content = bytearray(other.read_bytes())
    content[-3] ^= 1
    other.write_bytes(content)
    own(cache / "labels.safetensors", labels=("one", "two"))
    own(cache / "shape.safetensors", arguments={**ARGUMENTS, "window": 5})
    (cache / "cut.safetensors").write_bytes(good.read_bytes()[:5000])
    names = ("good", "damaged", "labels", "shape", "cut", "nowhere")
    done = models(home, "verify", *names, code=5)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", *["FAIL"] * 5]
    for line, message in zip(
        lines[1:],
        (
            "the tensors do not match their checksum",
            "the card has 2 labels for 22 classes",
            "wrong shape: network.positions.table",
            "the file is truncated",
            "unknown model 'nowhere'",
        ),
        strict=True,
    ):
        assert message in line
    rows = json.loads(models(home, "verify", "--json", "good", "cut", code=5).stdout)
    assert [row["ok"] for row in rows] == [True, False]


def test_verify_measures_the_figure_of_the_card_again(home: Path) -> None:
    done = models(home, "verify", "cotrans")
    path, told = done.stdout.removeprefix("ok    ").split("  ")
    sample = read_card(Path(path)).sample
    assert re.fullmatch(r"band\.ogg: accuracy 0\.\d{3}, log loss 0\.\d{3}\n", told)
    [row] = json.loads(models(home, "verify", "--json", "cotrans").stdout)
    assert (row["sample"]["file"], row["sample"]["reason"]) == ("band.ogg", None)
    assert row["sample"]["metrics"] == pytest.approx(sample["metrics"], abs=sample["tolerance"])


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--config", "num_head=2"], 2, "num_head: unknown; did you mean num_heads?"),
        (["--config", "num_heads"], 2, "--config num_heads: not key=value"),
        (["--as", "caffe"], 2, "'caffe' is not one of"),
        (["-o", "weights.bin"], 2, "must end in .safetensors"),
        (["-o", "/dev/null/weights.safetensors"], 2, "/dev/null: is not a folder"),
        (["--name", "a/b"], 2, "not a file name"),
        (
            ["--config", "labels=coco"],
            5,
            "pth: labels=coco has 80 names, the checkpoint 22 classes",
        ),
        (["--as", "oadtr"], 5, "missing: linear_encoding.weight"),
    ],
)
def test_import_errors_are_one_line(
    home: Path, cache: Path, args: list[str], code: int, message: str
) -> None:
    home.mkdir()
    refused(code, message, "models", "import", foreign(home.parent), *args, **places(home))
    assert not cache.exists()


def test_a_malicious_checkpoint_runs_nothing(home: Path, cache: Path) -> None:
    home.mkdir()
    marker = home / "marker"

    class Malice:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    file = home.parent / "evil.pth"
    torch.save({"model": {"0.weight": torch.ones(1)}, "args": Malice()}, file)
    words = "evil.pth: refused: it references"
    refused(5, words, "models", "import", file, **places(home))
    assert not marker.exists()
    assert not cache.exists()


def test_names_that_are_not_there(home: Path) -> None:
    home.mkdir()
    words = "costream: unknown model 'cooadrt'; did you mean cooadtr or "
    refused(5, words, "models", "show", "cooadrt", **places(home))


@pytest.mark.long
def test_show_is_fifteen_lines_of_what_users_want_to_know(home: Path) -> None:
    shipped = sorted(path.stem for path in SHIPPED)
    for name in shipped:
        lines = models(home, "show", name).stdout.splitlines()
        assert len(lines) <= 15
        assert max(map(len, lines)) <= 80
        keys = {line.split(" ", 1)[0] for line in lines if not line.startswith(" ")}
        assert keys >= {"model", "limits", "licence", "takes", "step", "weights"}
        finds_joints = name in ("pose", "movenet")  # no labels
        assert ("knows" in keys) == (not finds_joints)


def test_show_gives_the_scores_of_the_shipped_model_next_to_its_baselines(home: Path) -> None:
    done = models(home, "show", "cooadtr", "--full")
    scores = {
        line.split("  ")[0]: line for line in done.stdout.splitlines() if "metrics test" in line
    }
    for name in ("cooadtr", "per-frame classifier", "majority"):
        assert "mAP=0." in scores[f"metrics test {name}"]
    assert "walk=0." in scores["metrics test cooadtr average_precision"]
    assert "[[" not in done.stdout
