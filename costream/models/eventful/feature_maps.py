"""Feature maps and proposals of video, updated where tokens have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.eventful.proposals import (
    NOTHING,
    OBJECTNESS,
    PREDICTED,
    ProposalNetwork,
)
from costream.models.eventful.pyramid import SimplePyramid
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.gates import pass_tokens
from costream.nn.eventful.policies import Policy, StartPolicy
from costream.nn.maps import MapLayout
from costream.nn.state import State, zeros


class View(NamedTuple):
    """Feature maps and anchor predictions, before boxes are selected."""

    maps: Sequence[Tensor]  # [B, C, H, W], the largest first
    predicted: Sequence[tuple[Tensor, Tensor]]  # of the anchors of each: [B, n] and [B, n, 4]


@dataclass
class ViewState(State):
    """State of the feature maps and predictions of every stream."""

    reference: Tensor  # tokens when they last passed, [B, N, D]
    narrow: Tensor  # input of the last convolutions of the feature maps, [B, places + 1, C]
    rows: Tensor  # the feature maps
    hidden: Tensor  # after the first convolution of the proposals
    predicted: Tensor  # of the anchors of each place, [B, places, 5 ratios]


def init_view_state(
    pyramid: SimplePyramid,
    proposals: ProposalNetwork,
    batch_size: int,
    height: int,
    width: int,
    like: Tensor,
) -> ViewState:
    """Return the initial state for streams of frames of this size, in tokens.

    ``like``: a row [D].
    """
    places = pyramid.layout(height, width).places
    widths = pyramid.channels, pyramid.channels, proposals.rpn_head.hidden
    narrow, rows, hidden = (zeros(batch_size, places + 1, c, like=like) for c in widths)
    reference = zeros(batch_size, height * width, len(like), like=like)
    predicted = zeros(batch_size, places, PREDICTED, like=like)
    return ViewState(reference, narrow, rows, hidden, predicted)


@torch.no_grad()
def update_view(
    pyramid: SimplePyramid,
    proposals: ProposalNetwork,
    tokens: Tensor,
    state: ViewState,
    fresh: Sequence[bool],
    policy: Policy,
    operations: Operations,
) -> View:
    """Return feature maps and predictions, recomputed where they depend on tokens passing a gate.

    ``tokens`` [B, h, w, D] pass a last gate, like the gates of the backbone: except for rounding,
    results are those for the tokens that passed last. ``fresh``: for each stream, whether all its
    tokens are computed. ``operations``: counts the operations.
    """
    height, width = tokens.shape[1:3]
    layout = pyramid.layout(height, width)
    chosen = pass_tokens(tokens.flatten(1, 2), state.reference, fresh, policy, operations)
    for stream, tokens_in in enumerate(chosen.tokens):
        if fresh[stream] and len(tokens_in) < height * width:  # the rest is empty
            for memory in (state.narrow, state.rows, state.hidden):
                memory[stream] = 0
        if not len(tokens_in):
            continue
        passed = torch.unflatten(state.reference[stream], 0, (height, width))
        rows = state.rows[stream]
        computed = pyramid.renew(passed, tokens_in, state.narrow[stream], rows, operations)
        proposals.renew(
            layout, rows, computed, state.hidden[stream], state.predicted[stream], operations
        )
    if isinstance(policy, StartPolicy):
        seen = policy.start(height * width)
        state.predicted[:, _hidden_places(layout, height, width, seen), :OBJECTNESS] = NOTHING
    maps = [layout.part(state.rows, level) for level in range(len(layout.sizes))]
    return View(maps, proposals.of_anchors(layout, state.predicted))


def _hidden_places(layout: MapLayout, height: int, width: int, seen: Tensor) -> Tensor:
    """Return which places of the feature maps depend on no token of ``seen``, bool [places]."""
    grid = torch.zeros(height * width, device=seen.device).index_fill_(0, seen, 1.0)
    pooled = (
        F.adaptive_max_pool2d(grid.view(1, 1, height, width), size)
        if size[0] <= height
        else F.interpolate(grid.view(1, 1, height, width), size)
        for size in layout.sizes
    )
    return torch.cat([part.flatten() for part in pooled]) == 0
