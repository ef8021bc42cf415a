from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from costream.models.oad.tdn import TemporalDifferenceNet
from costream.nn.state import zeros
from kit.encoders import build_encoder, step_through

ANOTHER_PROCESS = """
import sys, torch
from safetensors.torch import load_file, save_file
from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder
folder, depth = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
encoder = Encoder(EncoderConfig(32, 2, 24, depth, 7)).eval()
encoder.load_state_dict(load_file(folder + "/weights"))
state = encoder.init_state(3)
state.load_tensors(load_file(folder + "/state"))
x = load_file(folder + "/rows")["x"]
with torch.no_grad():
    out = torch.stack([encoder.forward_step(row, state) for row in x.unbind(1)], 1)
save_file({"out": out}, folder + "/out")
"""


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_saved_state_continues_bit_for_bit_in_another_process(tmp_path: Path, depth: int) -> None:
    encoder = build_encoder(depth=depth, embed_dim=32, heads=2)
    state, x = encoder.init_state(3), torch.randn(3, 30, 32)
    step_through(encoder, x[:, :12], state)
    state.reset([1])
    save_file(encoder.state_dict(), tmp_path / "weights")
    save_file(state.tensors(), tmp_path / "state")
    save_file({"x": x[:, 12:].contiguous()}, tmp_path / "rows")
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path), str(depth)]
    subprocess.run(command, check=True, cwd=Path(__file__).resolve().parents[2])
    # From the file here too: on some processors products depend on where their rows lie.
    rows = load_file(tmp_path / "rows")["x"]
    assert torch.equal(load_file(tmp_path / "out")["out"], step_through(encoder, rows, state))


@pytest.mark.parametrize("depth", [1, 2])
def test_taking_all_streams_apart_and_together_changes_nothing(depth: int) -> None:
    state = build_encoder(depth=depth).init_state(4)
    for name, tensor in state.tensors().items():
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + len(name))
    parts = [state.take([k]) for k in range(4)]
    assert [part.batch_size for part in parts] == [1] * 4
    joined = type(state).cat(parts)
    for name, tensor in state.tensors().items():
        assert torch.equal(joined.tensors()[name], tensor)


@pytest.mark.parametrize("rows", [lambda: (k for k in [2, 0]), lambda: torch.tensor([2, 0])])
def test_streams_are_numbered_by_any_integers(rows) -> None:
    encoder = build_encoder(depth=2)
    state, expected = encoder.init_state(3), encoder.init_state(3)
    for each in (state, expected):
        for tensor in each.tensors().values():
            tensor.fill_(1)
    state.reset(rows())
    expected.reset([2, 0])
    taken, put = expected.take([1, 0]), state.take(rows())
    state.put(rows(), taken)
    expected.put([2, 0], taken)
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, expected.tensors()[name])
        assert torch.equal(put.tensors()[name], torch.zeros_like(taken.tensors()[name]))


def test_states_that_are_dropped_are_gone_at_once() -> None:
    """A watch takes one of every feed each second: in cycles, their tensors would pile up."""
    state = build_encoder(depth=2).init_state(4)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            type(state).cat([state.take([0]), state.clone()])
        assert gc.collect() < 20
    finally:
        gc.enable()


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed() -> None:
    state = build_encoder(depth=1).init_state(2)
    with pytest.raises(KeyError, match="queries"):
        state.load_tensors(build_encoder(depth=2).init_state(2).tensors())
    tensors = build_encoder(depth=1).init_state(2).tensors()
    tensors["attention.steps"] += 3
    tensors["attention.values"] = torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"attention\.values"):
        state.load_tensors(tensors)
    assert state.attention.steps.tolist() == [0, 0]


def test_zeros_are_counters_or_like_a_tensor() -> None:
    assert zeros(3).dtype == torch.int64
    like = torch.ones(1, dtype=torch.bfloat16)
    with torch.inference_mode():
        made = zeros(2, 5, like=like)
    assert (made.shape, made.dtype, made.is_inference()) == ((2, 5), torch.bfloat16, False)


def test_streams_that_leave_and_join_are_in_memory_as_before() -> None:
    net = TemporalDifferenceNet((16, 16), (4, 4, 8, 8)).eval()
    state = net.init_state(3)
    state.ring.copy_(torch.randn(state.ring.shape))
    assert not state.ring.is_contiguous()
    one, two = state.take([2]), state.take([1, 0])
    assert two.ring.stride() == state.ring.stride()
    assert torch.equal(two.ring, state.ring[[1, 0]])
    joined = type(state).cat([one, two])
    assert joined.ring.stride() == state.ring.stride()
    assert torch.equal(joined.ring, state.ring[[2, 1, 0]])
