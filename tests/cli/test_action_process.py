"""``costream`` with ViViT: tokens and budgets, batches, watches, model cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.action_nets import LABELS, write_model
from kit.media import excerpt
from kit.paths import SAMPLES
from kit.program import costream
from kit.runs import records, refused, rows, run

SAMPLE = SAMPLES / "room.mp4"
TOKENS = 10


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("weights") / "tiny-actions.safetensors")


def test_records_of_raw_video(weights: Path) -> None:
    done = run("detect", SAMPLE, "-m", weights, "--tokens", 6, "--end", 2, "-f", "jsonl")
    (header,) = records(done.stdout, "header")
    assert (header["task"], header["options"]["tokens"]) == ("action recognition", 6)
    predictions = records(done.stdout, "prediction")
    assert [p["i"] for p in predictions] == list(range(1, 20, 2))  # a tubelet is two pictures
    assert [p["warmup"] for p in predictions] == [True] * 4 + [False] * 6
    assert {label for p in predictions for label, _ in p["top"]} == set(LABELS)
    costs = records(done.stdout, "compute")
    assert [c.get("tokens") for c in costs] == [None, TOKENS, *([None, 6] * 9)]
    assert all((c["macs"] > 0) == ("tokens" in c) for c in costs)
    assert all(c["macs"] < c["dense_macs"] for c in costs if "tokens" in c)


@pytest.mark.slow
def test_a_budget_sets_the_tokens_of_steps_with_an_output(weights: Path) -> None:
    full, one = (
        records(
            costream("detect", SAMPLE, "-m", weights, *options, "--end", 3, "-f", "jsonl").stdout,
            "compute",
        )
        for options in (("--tokens", TOKENS), ("--tokens", 1))
    )
    budget = (full[-1]["macs"] + one[-1]["macs"]) // 2
    done = run(
        "detect", SAMPLE, "-m", weights, "--budget", f"{budget}MAC", "--end", 3, "-f", "jsonl"
    )
    costs = [c for c in records(done.stdout, "compute") if "tokens" in c]
    assert {(c["budget"], c["budget_macs"]) for c in costs} == {(budget, budget)}
    assert costs[0]["tokens"] == TOKENS
    later = costs[6:]
    assert {1 < c["tokens"] < TOKENS for c in later} == {True}
    assert max(c["macs"] for c in later) < 1.1 * budget


@pytest.mark.long
def test_a_batch_and_a_watch(weights: Path, tmp_path: Path) -> None:
    clip = excerpt(SAMPLE, tmp_path / "door.mp4", 0, 2)
    options = ("-m", weights, "--tokens", 6, "-q")
    run("batch", "-m", "cooadtr", clip, "-o", tmp_path / "out", *options, "-f", "csv", "--jobs", 1)
    costs = rows(tmp_path / "out" / "door.mp4.compute.csv")
    assert [row["tokens"] for row in costs][:4] == ["", "10", "", "6"]
    pace = ("--realtime", "--fps", 8, "--on-late", "block")
    run("watch", "--write", "all", "-m", "cooadtr", clip, "-o", tmp_path, *pace, *options)
    costs = records(tmp_path / "door.mp4.jsonl", "compute")
    assert [c["tokens"] for c in costs if "tokens" in c] == [TOKENS, *([6] * (len(costs) // 2 - 1))]


def test_inputs_of_other_kinds_are_refused(weights: Path) -> None:
    refused(2, "does not detect objects", "detect", SAMPLE, "-m", weights, "--track")
    refused(2, "does not detect objects", "bench", "budget", SAMPLE, "-m", weights)
    env = {"COSTREAM_WEIGHTS": str(weights.parent)}
    several = run("detect", SAMPLE, "-m", "cooadtr,tiny-actions", env=env, code=5)
    assert "cooadtr and tiny-actions cannot be combined" in several.stderr
    sound = run("detect", SAMPLES / "street.ogg", "-m", weights, code=4)
    assert "no video stream" in sound.stderr
    run("models", "verify", weights)
