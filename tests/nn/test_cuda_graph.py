"""Steps as CUDA graphs: slots that no number in Python decides, and, on a GPU, the graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costream.models.eventful.backbone import ViTDetBackbone
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.deepcot import DeepCoT
from costream.models.video.video3d.network import VideoNet
from costream.nn import fast
from costream.nn.block import EncoderConfig
from costream.nn.cuda_graph import GraphedStep
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder
from costream.nn.eventful.attention import TokenGrid, attend_frame
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.nn.eventful.positions import RelativePosition, attend_with_positions
from costream.nn.ring import DeviceCounters, record

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL = EncoderConfig(16, 2, 32, 1, 9)
SIZES = {"embed_dim": 16, "num_heads": 2, "feedforward": 32, "window": 9}
VIDEO: dict[str, Any] = {"stem_width": 8, "pool": 4}
MAKERS: dict[str, Callable[[], Any]] = {
    "one block": lambda: Encoder(SMALL),
    "three blocks": lambda: Encoder(SMALL.update({"depth": 3})[0]),
    "rotary": lambda: DeepEncoder(SMALL.update({"depth": 3})[0], rotary=True),
    "soft": lambda: DeepEncoder(SMALL.update({"depth": 2})[0], attention="soft", residual="scaled"),
    "cooadtr": lambda: CoOadTR(16, 4, **SIZES),
    "deepcot": lambda: DeepCoT(16, 4, positions="rotary", **SIZES),
    "cox3d": lambda: VideoNet(4, "x3d", 32, (8, 8, 8, 8), (1, 1, 1, 1), head=(16, 16), **VIDEO),
    "coi3d": lambda: VideoNet(4, "i3d", 32, (16, 16, 16, 16), (1, 2, 1, 1), **VIDEO),
}
STEPS = {"cox3d": 60, "coi3d": 75}


def rows_of(name: str, streams: int, like: Tensor) -> Tensor:
    """Return a step's input."""
    shape = (3, 32, 32) if name in STEPS else (16,)
    return torch.randn(streams, *shape, dtype=like.dtype, device=like.device)


def first(out: Any) -> Tensor | None:
    """Return the tensor, or the logits."""
    return out if out is None or isinstance(out, Tensor) else out.logits


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_slots_computed_next_to_the_rings_are_those_of_python(name: str, streams: int) -> None:
    torch.manual_seed(0)
    net = MAKERS[name]().double().eval()
    like, recorded_steps = next(net.parameters()), 0
    with torch.inference_mode():
        plain, state = net.init_state(streams), net.init_state(streams)
        counters = [t for t in state.tensors().values() if t.dtype == torch.int64]
        recording = DeviceCounters(counters, torch.device("cpu"))
        for step in range(STEPS.get(name, 25)):
            if step == 7:
                rows = [streams - 1]
                plain.reset(rows)
                state.reset(rows)
                recording.upload()
            x = rows_of(name, streams, like)
            expected, key = first(net.forward_step(x, plain)), net.graph_key(x, state)
            if key is None:
                found = first(net.forward_step(x, state))
                recording.upload()
            else:
                recorded_steps += 1
                with record(recording, not any(net.warmup(state))):
                    found = first(net.forward_step(x, state))
            torch.testing.assert_close(found, expected)
        for own, other in zip(plain.tensors().values(), state.tensors().values(), strict=True):
            torch.testing.assert_close(other, own)
    assert recorded_steps > 10


def test_several_rows_a_step_are_not_recorded() -> None:
    for name in ("one block", "rotary", "deepcot"):
        net = MAKERS[name]()
        assert net.graph_key(torch.zeros(1, 2, 16), net.init_state()) is None


@needs_cuda
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_graphs_give_the_steps(name: str, streams: int) -> None:
    torch.manual_seed(0)
    net = MAKERS[name]().eval().cuda()
    like = next(net.parameters())
    with torch.inference_mode():
        plain, state = net.init_state(streams), net.init_state(streams)
        graphed = GraphedStep(net, state)
        for step in range(2 * STEPS.get(name, 25)):
            x = rows_of(name, streams, like)
            if step == 33 and name not in STEPS:
                plain.reset([0])
                state.reset([0])
            own = step == 40  # an ordinary one between
            found = first(net.forward_step(x, state) if own else graphed(x))
            expected = first(net.forward_step(x, plain))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_positions_in_keys_are_those_of_a_bias() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 30, 8, dtype=torch.float64)
    y, x = torch.randn(2, 4, 30, 5).double(), torch.randn(2, 4, 30, 6).double()
    bias = (y[..., None] + x[..., None, :]).flatten(3)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(attend_with_positions(q, k, v, y, x), expected)


@needs_cuda
def test_fused_attention_is_that_with_a_bias() -> None:
    torch.manual_seed(0)
    grid, position = TokenGrid(6, 5, 2), RelativePosition((6, 5), 8).cuda()
    for table in position.parameters():
        nn.init.normal_(table)
    qkv = torch.randn(2, 30, 48, device="cuda")
    with torch.no_grad():
        found = attend_frame(qkv, grid, position)
        with fast.use_kernels(False):
            torch.testing.assert_close(found, attend_frame(qkv, grid, position))


@needs_cuda
@pytest.mark.parametrize("variant", ["exact", "rows", "eventful", "token-wise"])
def test_gated_graphs_give_the_gated_steps(variant: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dim": 32, "heads": 2, "depth": 3, "size": (8, 8)}
    net = ViTDetBackbone(**options, window=(4, 4), global_blocks=(1,), variant=variant)
    net = net.double().eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    x = torch.randn(1, 8, 8, 32, dtype=torch.float64)
    frames = [x := x + 0.3 * torch.randn_like(x) for _ in range(8)]
    with torch.inference_mode():
        state, expected, counts = net.init_state(1, 8, 8), [], []
        for frame in frames:
            counts.append(Operations())
            expected.append(net.forward_step(frame, state, TopTokens(20), counts[-1]))
        net.cuda()
        state = net.init_state(1, 8, 8)
        for frame, wanted, count in zip(frames, expected, counts, strict=True):
            operations = Operations()
            found = net.forward_step(frame.cuda(), state, TopTokens(20), operations)
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-6)
            assert operations.linear == count.linear
        assert state.graphs
