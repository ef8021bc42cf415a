"""Token gates: only tokens that differ from what was last computed are passed on.

Dutson, Li, Gupta, "Eventful Transformers" (ICCV 2023), section 4. A gate keeps a reference for
each token: its value when it last passed. Tokens are selected by their distance from that, not
from the last frame, so slow changes add up until they are noticed. Results computed from the
passed tokens go to a buffer that still holds the earlier results of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import Policy, ScoringPolicy, distances, start_tokens
from costream.nn.timing import check_shape


@dataclass(frozen=True)
class ChosenTokens:
    """The tokens of every stream that are computed in this step."""

    tokens: tuple[Tensor, ...]  # of each stream, int64 [M], ascending
    fresh: tuple[bool, ...]  # of each stream: it starts, all tokens are chosen that may be
    places: Tensor | None  # of all of them in the rows of all streams; None: every row
    # Those of a stream that may be chosen at all, int64 [n], ascending; None: every one.
    allowed: Tensor | None = None

    @property
    def counts(self) -> list[int]:
        """Number of chosen tokens of each stream."""
        return [len(tokens) for tokens in self.tokens]

    def take(self, x: Tensor) -> Tensor:
        """Return the chosen rows [M, C] of ``x`` [B, N, C]."""
        rows = x.flatten(0, 1)
        return rows if self.places is None else rows.index_select(0, self.places)

    def put(self, rows: Tensor, buffer: Tensor) -> None:
        """Write rows [M, C] to their places in ``buffer`` [B, N, C]."""
        if self.places is None:
            buffer.copy_(rows.view(buffer.shape))
        else:
            places = self.places.to(buffer.device)  # meta tensors are on another device
            buffer.view(-1, buffer.shape[2]).index_copy_(0, places, rows)

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of each stream."""
        return torch.split(rows, self.counts)


def pass_tokens(
    x: Tensor,
    reference: Tensor,
    fresh: Sequence[bool],
    policy: Policy,
    operations: Operations,
    remember_all: bool = False,
) -> ChosenTokens:
    """Choose tokens of ``x`` [B, N, C] and make them the new ``reference`` [B, N, C].

    All tokens of a fresh stream pass, or those that a ``StartPolicy`` names. ``remember_all``: the
    reference of every token becomes its value in this frame, as in STGT (Li et al.,
    "Spatio-temporal gated transformers", 2021), which therefore misses slow changes. ValueError for
    tokens that do not fit the reference.
    """
    check_shape(x.shape, reference.shape)
    count = x.shape[1]
    device = "cpu" if x.is_meta else x.device  # indices must have values even if tokens have none
    tokens, allowed = [], start_tokens(policy, count, device)
    for stream, begins in enumerate(fresh):
        if begins:
            tokens.append(allowed)
            if len(allowed) < count:  # those that are never computed have not changed either
                reference[stream] = x[stream]
        else:
            scores = policy.scores if isinstance(policy, ScoringPolicy) else distances
            tokens.append(policy.choose(scores(x[stream], reference[stream], operations)))
    if all(len(t) == count for t in tokens):
        places = None
    elif len(tokens) == 1:
        places = tokens[0]
    else:
        places = torch.cat([t + stream * count for stream, t in enumerate(tokens)])
    chosen = ChosenTokens(tuple(tokens), tuple(fresh), places, allowed)
    if remember_all:
        reference.copy_(x)
    else:
        chosen.put(chosen.take(x), reference)
    return chosen


def pass_difference(
    x: Tensor, reference: Tensor, columns: Tensor, operations: Operations
) -> tuple[Tensor, Tensor]:
    """Return these columns of ``x`` [..., N, C], and the change of each from its reference.

    A delta gate for these columns: the ``reference`` [..., N, C] of these columns becomes their
    new value. The difference is computed over all of ``x``, as the paper counts it.
    """
    operations.gate += x.numel()
    change = (x - reference)[..., columns, :]
    values = x[..., columns, :]
    reference[..., columns, :] = values
    return values, change
