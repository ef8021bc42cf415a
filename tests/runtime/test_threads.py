"""Number of threads: as many as asked for, unless one is faster; the table of ``bench threads``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from costream.cli.bench import command
from costream.core.errors import UsageError
from costream.core.records import VideoFrame
from costream.models.catalogue import load_model
from costream.models.eventful.detector import ObjectModel
from costream.options.options import Options
from costream.runtime import model_loading, threads


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("times", "expected"), [({1: 2e-3, 2: 3e-3}, 1), ({1: 3e-3, 2: 2e-3}, 2), ({}, 2)]
)
def test_one_thread_is_taken_where_it_is_faster(
    times: dict[int, float],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(threads, "step_times", lambda *_: times)
    with caplog.at_level(logging.INFO, "costream"):
        model_loading.load(Options(model="costgcn", threads=2))
    assert torch.get_num_threads() == expected
    assert [record.getMessage() for record in caplog.records] == (
        ["steps are faster with one thread than with --threads 2 (1: 2.00 ms, 2: 3.00 ms)"]
        if expected == 1
        else []
    )


def test_one_thread_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "step_times", lambda *_: pytest.fail("timed"))
    model_loading.load(Options(model="costgcn", threads=1))
    assert torch.get_num_threads() == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["cosounds", "eventful-vitdet"])
def test_steps_of_noise_are_timed(name: str) -> None:
    times = threads.step_times(load_model(name), (1, 2), 1, 0)
    assert list(times) == [1, 2]
    assert min(times.values()) > 0


def test_the_table_of_threads() -> None:
    options = ["threads", "-m", "cosounds", "--threads", "1", "--threads", "2", "--rounds", "1"]
    out = CliRunner().invoke(command, [*options, "--json"], catch_exceptions=False).stdout
    (row,) = json.loads(out)[0]["rows"]
    assert row["model"] == "cosounds"
    assert row["best"] in (1, 2)
    assert row["2 to 1"] == pytest.approx(row["2 threads, ms"] / row["1 thread, ms"], rel=0.05)
    with pytest.raises(UsageError, match="cooadtr,cosounds takes no noise"):
        CliRunner().invoke(command, ["threads", "-m", "cooadtr,cosounds"], catch_exceptions=False)


@pytest.mark.parametrize("all_s", [1e-3, 3e-3])
def test_a_gpu_computes_all_tokens_where_that_is_faster(
    all_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model("eventful-vitdet")
    assert isinstance(model, ObjectModel)
    monkeypatch.setattr(threads, "token_times", lambda *_: (2e-3, all_s))
    monkeypatch.setattr(model, "device", torch.device("cuda"))
    with caplog.at_level(logging.INFO, "costream"):
        threads.set_tokens(model, 9)
    monkeypatch.undo()
    faster = all_s < 2e-3
    said = "all tokens are faster here than --tokens 9 (1.00 and 2.00 ms): all are computed"
    assert [record.getMessage() for record in caplog.records] == [said] * faster
    state = model.init_state()
    state.tokens = 9
    pictures = np.random.default_rng(0).integers(0, 256, (3, 96, 128, 3), np.uint8)
    frames = [VideoFrame(i, float(i), i, picture.copy) for i, picture in enumerate(pictures)]
    (first,), *others = (model.step([frame], state).tokens or () for frame in frames)
    assert others == [(first,) if faster else (9,)] * 2


@pytest.mark.long
def test_both_numbers_of_tokens_are_timed() -> None:
    model = load_model("eventful-vitdet")
    assert isinstance(model, ObjectModel)
    assert min(threads.token_times(model, 9)) > 0


def test_a_processor_computes_the_tokens_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "token_times", lambda *_: pytest.fail("timed"))
    model = model_loading.load(Options(model="eventful-vitdet", tokens=9))
    assert isinstance(model, ObjectModel)
    assert not model.all_tokens
