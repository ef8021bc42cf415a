"""CMeRT: imported checkpoints in streams, against the authors' windows in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError
from costream.models.oad.cmert import CMeRT
from kit import cmert_oracle
from kit.foreign_actions import CMERT_SETTINGS, drawn_cmert

WINDOW, AHEAD = 4, 2
SIZES = {"heads": 2, "window": WINDOW, "context": 3, "every": 3, "samples": 3, "ahead": AHEAD}


def expected(theirs: dict[str, Tensor], x: Tensor, motion: int) -> tuple[Tensor, Tensor]:
    """Return the logits [T, K] of each row, and those [T - 3, A, K] after each full window.

    The first window has the answers of its earlier rows, as in the authors' evaluation.
    """
    windows = torch.stack(
        [
            cmert_oracle.logits(theirs, x, begin, motion, SIZES)
            for begin in range(len(x) - WINDOW + 1)
        ]
    )
    now = torch.cat([windows[0, : WINDOW - 1], windows[:, WINDOW - 1]])
    return now, windows[:, WINDOW:]


@pytest.mark.parametrize("motion", [2, 0])
@torch.no_grad()
def test_steps_chunks_and_clip_are_the_windows_of_the_authors(
    motion: int, load: Callable[..., Any]
) -> None:
    theirs = drawn_cmert(motion=bool(motion))
    card, network = load(theirs, labels="thumos14", **CMERT_SETTINGS)
    assert (card.architecture, card.rate_hz, card.background) == ("cmert", 4.0, "Background")
    network, theirs = network.double(), {name: w.double() for name, w in theirs.items()}
    x = torch.randn(2, 26, 6, dtype=torch.float64)
    wanted = [expected(theirs, rows, motion) for rows in x]
    now, after = (torch.stack(parts) for parts in zip(*wanted, strict=True))
    state = network.init_state(2)
    outs = [network.forward_step(row, state) for row in x[:, :13].unbind(1)]
    logits = [out.logits[:, None] for out in outs]
    coming = [out.anticipation[:, None] for out in outs]
    for part in x[:, 13:].split(9, 1):
        out = network.forward_steps(part, state)
        logits, coming = [*logits, out.logits], [*coming, out.anticipation]
    steps = torch.cat(logits, 1), torch.cat(coming, 1)
    for ours in (steps, network(x)):
        torch.testing.assert_close(ours[0], now, rtol=0, atol=1e-9)
        torch.testing.assert_close(ours[1][:, WINDOW - 1 :], after, rtol=0, atol=1e-9)
    torch.testing.assert_close(network(x)[1], steps[1], rtol=0, atol=1e-9)
    last = network(x, 5, 3)
    torch.testing.assert_close(last.logits, now[:, -3:], rtol=0, atol=1e-9)
    # What is further ago than memory and window is forgotten.
    other = torch.cat([torch.randn(2, 26 - 3 * 3 - WINDOW, 6).double(), x[:, 13:]], 1)
    torch.testing.assert_close(network(other, last=1).logits, now[:, -1:], rtol=0, atol=1e-9)
    other[:, 13] += 1
    assert not torch.allclose(network(other, last=1).logits, now[:, -1:], atol=1e-3)


def test_sizes_are_those_of_the_published_network() -> None:
    with torch.device("meta"):
        network = CMeRT(3072, 22, motion_width=1024, anticipated=48)
    # The authors' training log; they keep 48 rows of the future, of which 8 are used.
    assert sum(p.numel() for p in network.parameters()) == 94_685_206


def test_other_networks_of_the_authors_are_refused(load: Callable[..., Any]) -> None:
    tensors = drawn_cmert()
    with pytest.raises(ModelError, match=r"left over: classifier_noun\.weight"):
        load({**tensors, "classifier_noun.weight": torch.zeros(2, 8)}, **CMERT_SETTINGS)
    del tensors["classifier.bias"]  # of a normalised classifier
    with pytest.raises(ModelError, match=r"missing: classifier\.bias"):
        load(tensors, **CMERT_SETTINGS)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"anticipated": "8"}, "anticipated 8: the checkpoint has 7 rows of the future"),
        ({"window": "10"}, "anticipated rows, 13: the checkpoint has positions of 12 rows"),
    ],
)
def test_settings_beyond_the_tables_are_refused(
    setting: dict[str, str], message: str, load: Callable[..., Any]
) -> None:
    with pytest.raises(ModelError, match=message):
        load(drawn_cmert(), **{**CMERT_SETTINGS, **setting})
