"""TeSTra: imported checkpoints in streams, against the authors' windows in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from costream.core.errors import ModelError
from kit import testra_oracle
from kit.foreign_actions import TESTRA_SETTINGS, drawn_testra

SIZES = {"heads": 2, "window": 5, "every": 3, "decay": 0.8, "samples": 16}


@torch.no_grad()
def test_steps_chunks_and_clip_are_the_windows_of_the_authors(load: Callable[..., Any]) -> None:
    theirs = drawn_testra()
    card, network = load(theirs, labels="thumos14", **TESTRA_SETTINGS)
    assert (card.architecture, card.rate_hz, card.background) == ("testra", 4.0, "Background")
    network, theirs = network.double(), {name: w.double() for name, w in theirs.items()}
    x = torch.randn(2, 26, 6, dtype=torch.float64)
    wanted = torch.stack(
        [
            torch.stack([testra_oracle.logits(theirs, one, t, **SIZES) for t in range(26)])
            for one in x
        ]
    )
    state = network.init_state(2)
    parts = [network.forward_step(row, state).logits[:, None] for row in x[:, :13].unbind(1)]
    parts += [network.forward_steps(part, state).logits for part in x[:, 13:].split(9, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(network(x).logits, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(network(x, 5, 3).logits, wanted[:, -3:], rtol=0, atol=1e-9)
    # Five remembered rows have all but 0.8 ** 5 of the weights of all.
    short = testra_oracle.logits(theirs, x[0], 25, **{**SIZES, "samples": 5})
    torch.testing.assert_close(wanted[0, 25], short, rtol=0, atol=0.8**5)


@torch.no_grad()
def test_logits_of_any_size_stay_finite(load: Callable[..., Any]) -> None:
    network = load(drawn_testra(), labels="thumos14", **TESTRA_SETTINGS)[1].double()
    x = torch.randn(1, 30, 6, dtype=torch.float64)
    x[:, 14:] *= 300  # logits of hundreds, larger than all before
    steps = network.forward_steps(x, network.init_state()).logits
    torch.testing.assert_close(steps, network(x).logits, rtol=0, atol=1e-9)


def test_anticipation_is_left_over(load: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match=r"left over: dec_query\.weight"):
        load({**drawn_testra(), "dec_query.weight": torch.zeros(2, 8)}, **TESTRA_SETTINGS)


def test_a_window_longer_than_the_positions_is_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="window 13: the checkpoint has positions of 12 rows"):
        load(drawn_testra(), **{**TESTRA_SETTINGS, "window": "13"})


def test_lstr_has_no_decay(load: Callable[..., Any]) -> None:
    network = load(drawn_testra(), **{**TESTRA_SETTINGS, "memory_decay": "1"})[1]
    assert (network.decay, network.horizon) == (1.0, 768)
