"""Compiled steps of encoder blocks: as the readable form, whatever happens between two steps."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn import fast
from costream.nn.adapters.adapting import adapt
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder
from costream.nn.int8_layers import to_int8
from kit.choices import taking
from kit.encoders import build_encoder, step_through


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    fast.compile_blocks()


def readable(encoder: Any, x: Tensor, state: Any) -> Tensor:
    with fast.use_kernels(False):
        return encoder.forward_step(x, state)  # type: ignore[no-any-return]


def compiled_steps(encoder: Any, state: Any) -> list[Any]:
    if isinstance(encoder, DeepEncoder):
        return [layer.compiled for layer in state.layers]
    return [state.attention.compiled]


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_both_forms_agree_and_continue_each_other(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99)))
    heads, head_width = data.draw(st.integers(1, 3)), data.draw(st.integers(5, 40))
    encoder = build_encoder(
        data.draw(st.sampled_from([Encoder, DeepEncoder])),
        depth=data.draw(st.integers(1, 3)),
        window=data.draw(st.integers(5, 36)),
        embed_dim=heads * head_width,
        heads=heads,
        feedforward=data.draw(st.integers(5, 70)),
        logit_scale=data.draw(st.sampled_from([1.0, 8.0])),
        activation=data.draw(st.sampled_from(["relu", "gelu"])),
        final_norm=data.draw(st.booleans()),
        qkv_bias=data.draw(st.booleans()),
        out_bias=data.draw(st.booleans()),
    )
    exact = copy.deepcopy(encoder).double()
    state, other, truth = (e.init_state() for e in (encoder, encoder, exact))
    for _ in range(data.draw(st.integers(1, 2 * encoder.window + 9))):
        x = torch.randn(1, encoder.embed_dim)
        form = data.draw(
            st.sampled_from(["fast"] * 6 + ["readable", "clip", "clone", "pickle", "reset"])
        )
        if form == "reset":
            for each in (state, other, truth):
                each.reset([0])
        elif form == "clone":
            state = state.clone()
        elif form == "pickle":
            state = pickle.loads(pickle.dumps(state))
        if form == "readable":
            out = readable(encoder, x, state)
        elif form == "clip":
            out = encoder.forward_steps(x[None], state)[:, 0]
        else:
            out = encoder.forward_step(x, state)
        torch.testing.assert_close(out, readable(encoder, x, other), atol=5e-5, rtol=1e-4)
        expected = exact.forward_step(x.double(), truth).float()
        torch.testing.assert_close(out, expected, atol=5e-5, rtol=1e-4)


def stepped(**options: Any) -> tuple[Any, Any]:
    encoder = build_encoder(heads=2, **options)
    state = encoder.init_state()
    for x in torch.randn(9, 1, 16):
        encoder.forward_step(x, state)
    assert None not in compiled_steps(encoder, state)
    return encoder, state


def test_weights_that_change_or_move_are_used() -> None:
    encoder, state = stepped()
    other, x = state.clone(), torch.randn(1, 16)
    layer = encoder.layers[-1]
    for change in (
        lambda: layer.linear1.weight.data.mul_(2),
        lambda: setattr(layer.linear1.weight, "data", torch.randn(24, 16)),
        lambda: setattr(layer.linear2, "bias", torch.nn.Parameter(torch.randn(16))),
        lambda: encoder.load_state_dict(build_encoder(heads=2).state_dict()),
        lambda: setattr(layer.linear1.weight, "data", torch.randn(16, 24).t()),  # not contiguous
        lambda: adapt(encoder, "lora", 2),
    ):
        change()
        out = encoder.forward_step(x, state)
        torch.testing.assert_close(out, readable(encoder, x, other), atol=3e-5, rtol=1e-4)
    assert compiled_steps(encoder, state)[-1] is None


@pytest.mark.parametrize("depth", [1, 2])
def test_attention_without_biases_is_compiled(depth: int) -> None:
    encoder = build_encoder(heads=2, depth=depth, qkv_bias=False, out_bias=False)
    state, other = encoder.init_state(), encoder.init_state()
    for x in torch.randn(20, 1, 16):
        out = encoder.forward_step(x, state)
        first = state.attention.compiled
        torch.testing.assert_close(out, readable(encoder, x, other), atol=3e-5, rtol=1e-4)
    assert first is state.attention.compiled is not None  # made once
    encoder.layers[-1].self_attn.out_proj.bias = torch.nn.Parameter(torch.randn(16))
    out = encoder.forward_step(x, state)
    torch.testing.assert_close(out, readable(encoder, x, other), atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("way", ["1 output", "4 outputs"])
def test_both_forms_of_products_agree_with_the_readable_one(way: str) -> None:
    encoder = build_encoder(heads=2, embed_dim=18, feedforward=23)
    state, other = encoder.init_state(), encoder.init_state()
    with taking(way):
        for x in torch.randn(12, 1, 18):
            out = encoder.forward_step(x, state)
            torch.testing.assert_close(out, readable(encoder, x, other), atol=3e-5, rtol=1e-4)


def test_batches_and_other_precisions_are_not_compiled() -> None:
    encoder, state = stepped()
    batch = encoder.init_state(2)
    encoder.forward_step(torch.randn(2, 16), batch)
    wide = copy.deepcopy(encoder).double()
    precise = wide.init_state()
    wide.forward_step(torch.randn(1, 16).double(), precise)
    assert compiled_steps(encoder, batch) == compiled_steps(wide, precise) == [None]
    x = torch.randn(1, 32)[:, ::2]  # every other number
    expected = readable(encoder, x, state.clone())
    torch.testing.assert_close(encoder.forward_step(x, state), expected, atol=3e-5, rtol=1e-4)
    with torch.enable_grad():
        encoder.forward_step(torch.randn(1, 16), state).sum().backward()
    assert encoder.layers[-1].linear1.weight.grad is not None
    with pytest.raises(RuntimeError):
        encoder.forward_step(torch.randn(1, 17), state)
    with pytest.raises(RuntimeError):
        encoder.forward_step(torch.randn(1, 16), build_encoder(window=5).init_state())
    deep: Any = partial(build_encoder, DeepEncoder, heads=2)
    exact: Any = partial(build_encoder, heads=2)
    for other in (
        *(to_int8(copy.deepcopy(encoder), 1), deep(attention="soft"), deep(rotary=True)),
        *(exact(norm_first=True), exact(activation="none")),
    ):
        state = other.init_state()
        other.forward_step(torch.randn(1, 16), state)
        assert set(compiled_steps(other, state)) == {None}


def test_a_number_that_is_none_stays_one_and_a_reset_forgets_it() -> None:
    encoder, state = stepped()
    assert encoder.forward_step(torch.full((1, 16), torch.nan), state).isnan().all()
    assert encoder.forward_step(torch.randn(1, 16), state).isnan().all()
    state.reset()
    x = torch.randn(1, 20, 16)
    torch.testing.assert_close(step_through(encoder, x, state), step_through(encoder, x))


def test_they_are_loaded_when_a_stream_has_taken_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, loaded = threading.Event(), sys.modules["costream.nn.retroactive_kernels"]
    monkeypatch.setattr(fast, "compile_blocks", began.set)
    monkeypatch.setattr(fast, "STEPS_WORTH_LOADING", 4)
    encoder = build_encoder(heads=2)
    state = encoder.init_state()
    monkeypatch.delitem(sys.modules, "costream.nn.retroactive_kernels")
    for _ in range(3):
        encoder.forward_step(torch.randn(1, 16), state)
    assert not began.is_set()
    encoder.forward_step(torch.randn(1, 16), state)
    assert began.wait(90)
    assert state.attention.compiled is None
    monkeypatch.setitem(sys.modules, "costream.nn.retroactive_kernels", loaded)
    encoder.forward_step(torch.randn(1, 16), state)
    assert state.attention.compiled is not None
