"""Tokens under masks are not computed: not in a stream's first picture, nor after a scene cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from costream.models.eventful.vitdet import ViTDet
from costream.models.eventful.yolos import Yolos
from costream.nn.eventful.attention import RowAttention, TokenGrid
from costream.nn.eventful.block import VARIANTS
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.gates import pass_tokens
from costream.nn.eventful.policies import OnlyTokens, RecordedPolicy, TopTokens
from kit.eventful_nets import randomise
from kit.object_nets import ARGUMENTS

SIZE = (80, 112)
UNPOOLED = [name for name, variant in VARIANTS.items() if variant.pool == 1]
SEEN = torch.tensor([k for k in range(35) if k % 7 > 2])  # all but the first three columns
pytestmark = pytest.mark.usefixtures("no_grad")


def vitdet(**changes: Any) -> ViTDet:
    torch.manual_seed(0)
    return randomise(ViTDet(**{**ARGUMENTS, "score": 0.0, **changes}))  # type: ignore[return-value]


def yolos(**changes: Any) -> Yolos:
    torch.manual_seed(0)
    sizes = {"dim": 16, "heads": 2, "depth": 3, "detections": 4, "position_size": (5, 7)}
    return randomise(Yolos([1, 2], **sizes, score=0.0, **changes))  # type: ignore[return-value]


def policy(count: int = 35) -> RecordedPolicy:
    return RecordedPolicy(OnlyTokens(TopTokens(count), SEEN), 35)


def pictures(seed: int) -> Tensor:
    """Noise, grey where it is masked."""
    noise = torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(seed))
    noise[..., :48] = 0
    return noise


def view(found: Any) -> list[Tensor]:
    """Return what a detector sees, as a list of tensors."""
    if isinstance(found, Tensor):
        return [found]
    return [*found.maps, *(part for pair in found.predicted for part in pair)]


@pytest.mark.parametrize(
    "make", [vitdet, yolos, *(lambda v=v: vitdet(variant=v) for v in UNPOOLED)]
)
def test_a_first_picture_and_a_cut_compute_what_is_seen(make: Any) -> None:
    net = make()
    state = net.init_state(1, *SIZE)
    costs, tokens = [], []
    for seed in (1, 1, 2):  # the second is the first again, the third another scene
        operations, gates = Operations(), policy(4)
        out = net.view_step(net.embed(pictures(seed)), state, gates, operations)
        costs.append(operations)
        tokens.append(int(gates.updated.sum()))
    assert tokens == [20, 4, 20]
    in_full = Operations()
    net.view_step(net.embed(pictures(1)), net.init_state(1, *SIZE), TopTokens(4), in_full)
    assert costs[0].linear < in_full.linear
    assert costs[2].linear == costs[0].linear
    # What follows a cut is what a new stream gives: nothing of the scene before is left.
    alone = net.view_step(net.embed(pictures(2)), net.init_state(1, *SIZE), policy(4), Operations())
    for one, other in zip(view(out), view(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [vitdet, yolos])
def test_all_that_is_seen_computed_again_is_a_new_stream(make: Any) -> None:
    """As without masks: steps with all tokens give what the picture alone gives."""
    net = make(scene_cut=None)
    state = net.init_state(1, *SIZE)
    for seed in range(4):
        out = net.view_step(net.embed(pictures(seed)), state, policy(), Operations())
        alone = net.view_step(
            net.embed(pictures(seed)), net.init_state(1, *SIZE), policy(), Operations()
        )
        for one, other in zip(view(out), view(alone), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_nothing_is_found_under_a_mask() -> None:
    """Anchors that see only what is masked are none, whatever the network says of grey."""
    net = vitdet()
    out = net.view_step(net.embed(pictures(1)), net.init_state(1, *SIZE), policy(), Operations())
    logits = out.predicted[0][0].view(20, 28, -1)  # stride 4
    assert (logits[:, :12] == -100).all()
    assert (logits[:, 12:] > -50).all()


def test_masked_tokens_have_no_turn() -> None:
    """Nothing changes: the attention of what is seen is renewed in turn, and of nothing else."""
    attention, frame = RowAttention(every=4), TokenGrid(1, 35, 2, relative=False)
    state, qkv = attention.init_state(1, frame, torch.zeros(6)), torch.zeros(1, 35, 18)
    x, reference = torch.randn(1, 35, 6), torch.zeros(1, 35, 6)
    renewed: list[int] = []
    for step in range(1 + 4):
        only, operations = OnlyTokens(TopTokens(0), SEEN), Operations()
        chosen = pass_tokens(x, reference, (step == 0,), only, operations)
        state.attended.fill_(7.0)
        new = torch.zeros(chosen.counts[0], 18)
        attention.step(qkv, new, chosen, state, frame, None, operations)
        if step:
            renewed += (state.attended[0] != 7.0).any(-1).nonzero().flatten().tolist()
            assert operations.product == 2 * (20 // 4) * 35 * 6
    assert sorted(renewed) == SEEN.tolist()


def test_a_mask_over_everything_leaves_nothing() -> None:
    for net in (vitdet(), yolos()):
        state, none = net.init_state(1, *SIZE), torch.zeros(0, dtype=torch.int64)
        for _ in range(2):
            gates = RecordedPolicy(OnlyTokens(TopTokens(9), none), 35)
            out = net.view_step(net.embed(torch.zeros(1, 3, *SIZE)), state, gates, Operations())
            assert all(part.isfinite().all() for part in view(out))
            assert int(gates.updated.sum()) == 0
