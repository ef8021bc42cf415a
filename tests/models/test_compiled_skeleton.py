"""Compiled steps of skeleton networks: as the clip network, and as the readable steps."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from costream.models.skeleton.network import SkeletonNet
from costream.models.skeleton.step_plan import BlockPlan, SkeletonState
from costream.nn import fast
from kit.choices import taking
from kit.skeleton_nets import FORMS, assert_same, outputs, small_net, stepped

pytestmark = pytest.mark.usefixtures("no_grad")
_COMPILED = ["stgcn", "stgcn-none-strided", "stgcn-causal-statistics", "stgcn-kernel-3"]


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """Take compiled steps whatever they take: the processor may be busy."""
    fast.compile_blocks()
    with taking("compiled"):
        yield


def stream(length: int, batch: int = 1) -> Tensor:
    x = torch.randn(batch, length, 2, 5, 2)
    x[:, length // 3 : length // 2, 1] = 0  # a person leaves and comes back
    return x


def plans(state: SkeletonState) -> list[BlockPlan]:
    return [plan for steps in state.plans.values() for plan in steps.plans]


def precise(net: SkeletonNet, x: Tensor) -> dict[int, Tensor]:
    given = outputs(copy.deepcopy(net).double(), x.double())
    return {step: logits.float() for step, logits in given.items()}


@pytest.mark.parametrize("form", _COMPILED)
def test_compiled_steps_are_the_clip_network(form: str) -> None:
    net, x = small_net(form).float(), stream(60)
    state = net.init_state()
    given = stepped(net, x, state)
    assert any(plan.compiled for plan in plans(state))
    assert_same(given, precise(net, x), 2e-5)


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_clip_network(form: str, batch: int) -> None:
    net, x = small_net(form).float(), stream(150, batch)
    assert_same(stepped(net, x), precise(net, x), 2e-5)


def test_widths_and_persons_that_fill_no_tile() -> None:
    net, x = small_net("stgcn", widths=(5, 9, 13, 18), persons=1).float(), stream(40)[:, :, :1]
    assert_same(stepped(net, x), precise(net, x), 2e-5)


def test_readable_steps_continue_compiled_ones_and_the_other_way() -> None:
    net, x = small_net("stgcn-causal", strides=(1,) * 4).float(), stream(90)
    expected, state, given = precise(net, x), net.init_state(), {}
    for step, frame in enumerate(x.unbind(1)):
        if step == 50:
            state = state.clone()
        with fast.use_kernels(step // 7 % 2 == 0):
            given[step] = net.forward_step(frame, state).logits
        if step % 30 == 20:
            held = state.clone()
            chunk = net.forward_steps(x[:, step + 1 : step + 4], held).logits[0]
            assert (chunk - torch.cat([expected[step + k] for k in (1, 2, 3)])).abs().max() < 1e-4
    assert_same(given, expected, 2e-5)


def test_a_stream_that_is_reset_begins_anew_and_nan_stays() -> None:
    net, x = small_net("stgcn-causal").float(), stream(40)
    state = net.init_state()
    stepped(net, x, state)
    broken = x[:, 0].clone()
    broken[0, 0, 2, 1] = torch.nan
    assert net.forward_step(broken, state).logits.isnan().any()
    state.reset()
    assert_same(stepped(net, x, state), precise(net, x), 2e-5)
