"""MiniROAD checkpoints on random weights, against the published modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from costream.core.errors import ModelError
from costream.core.label_sets import THUMOS14
from kit.foreign_actions import MiniRoadModules


@torch.no_grad()
def test_the_network_is_the_same(load: Callable[..., Any], perturb: Callable[[Any], Any]) -> None:
    theirs = perturb(MiniRoadModules())
    card, network = load(theirs.state_dict(), labels="thumos14")
    assert (card.architecture, card.rate_hz, card.background) == ("miniroad", 4.0, "Background")
    assert card.labels == THUMOS14.names
    x = torch.randn(2, 11, 6)
    torch.testing.assert_close(network(x).logits, theirs(x))


def test_a_second_layer_is_left_over(load: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match=r"left over: gru\.bias_hh_l1"):
        load(MiniRoadModules(2).state_dict(), labels="thumos14")
