"""Fast forms against the readable forms beside them, and what each is for."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.attention import SingleOutputAttention
from costream.nn.compiled import F32, compiled
from costream.nn.eventful.attention import TokenGrid
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.exact_update import ExactUpdate
from costream.nn.eventful.gates import ChosenTokens
from costream.nn.fast import gelu, layer_norm, linear
from costream.nn.nystrom.continual import RetroactiveNystrom, SingleOutputNystrom
from costream.nn.position import RecyclingPositions, RotaryPositions
from kit.nystrom_oracle import build

# A pair yields what it computes; the form may change between two items.


def layers(bias: bool) -> Iterator[Tensor]:
    pair = nn.ModuleDict({"product": nn.Linear(6, 5, bias=bias), "norm": nn.LayerNorm(6, eps=0.1)})
    x = torch.randn(3, 4, 6)
    nn.init.normal_(pair["norm"].weight)
    yield linear(pair, "product", x)
    yield layer_norm(pair, "norm", x)


def activations() -> Iterator[Tensor]:
    for shape in [(1, 384), (3, 5, 7), (1, 3), (4, 2), (2, 64, 1024)]:
        for x in (torch.randn(shape) * 3, torch.randn(shape).double()):
            for grad in (True, False):
                with torch.set_grad_enabled(grad):
                    yield gelu(x.clone())
                    yield gelu(x.mT.clone())


def steps(module: Any, width: int, more: Callable[[int], tuple[Any, ...]] | None = None) -> Any:
    state = module.init_state()
    for t in range(20):
        yield module.forward_step(torch.randn(1, width), state, *(more(t) if more else ()))


def attention(rotary: bool, **options: Any) -> Iterator[Tensor]:
    turns = RotaryPositions(4).turns
    more = (lambda t: (turns(torch.tensor([t]), torch.zeros(1)),)) if rotary else None
    yield from steps(SingleOutputAttention(16, 4, 7, **options), 16, more)


def nystrom(kind: type, fixed: bool) -> Iterator[Tensor]:
    yield from steps(build(kind, 8, 2, 7, 3, fixed=fixed).float(), 8)


def exact_updates() -> Iterator[Tensor]:
    frame, update = TokenGrid(50, 40, 2, relative=False), ExactUpdate()
    state, buffer = update.init_state(1, frame, torch.zeros(16)), torch.zeros(1, 2000, 48)
    for count in (2000, 10, 900, 40, 0, 3):
        tokens = torch.randperm(2000)[:count].sort().values
        chosen = ChosenTokens((tokens,), (count == 2000,), tokens)
        new = torch.randn(count, 48)
        yield update.step(buffer, new, chosen, state, frame, None, Operations())


PAIRS: dict[str, Callable[[], Iterator[Tensor]]] = {
    "layers": partial(layers, True),
    "layers without bias": partial(layers, False),
    "gelu": activations,
    "positions": lambda: steps(RecyclingPositions(7, 16), 16),
    "attention": partial(attention, False),
    "attention, rotary, no biases": partial(attention, True, qkv_bias=False, out_bias=False),
    "attention, wide heads": lambda: steps(SingleOutputAttention(64, 2, 7), 64),
    "nystrom": partial(nystrom, SingleOutputNystrom, False),
    "nystrom, fixed": partial(nystrom, SingleOutputNystrom, True),
    "nystrom, all rows": partial(nystrom, RetroactiveNystrom, False),
    "exact update": exact_updates,
}


def outputs(name: str, forms: tuple[bool, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    pair, out = PAIRS[name](), []
    for form in cycle(forms):
        with fast.use_kernels(form):
            item = next(pair, None)
        if item is None:
            return out
        out.append(item)
    raise AssertionError


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_agree_and_continue_each_other(name: str) -> None:
    readable = outputs(name, (False,))
    for forms in [(True,), (True, False), (False, True)]:
        torch.testing.assert_close(
            outputs(name, forms), readable, atol=3e-5, rtol=1e-4, equal_nan=True
        )


def test_the_switch_is_put_back_and_chooses_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with fast.use_kernels(False):
        assert not fast.enabled()
    with pytest.raises(KeyError), fast.use_kernels(False):
        raise KeyError
    assert fast.enabled()
    monkeypatch.setattr("costream.nn.eventful.exact_update.StreamUpdate.update", None)
    outputs("exact update", (False,))
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        outputs("exact update", (True,))


def test_the_choice_is_of_one_thread() -> None:
    chosen: list[bool] = []
    with fast.use_kernels(False):
        thread = Thread(target=lambda: chosen.append(fast.enabled()))
        thread.start()
        thread.join()
    assert chosen == [True]


def test_gelu_leaves_its_argument_when_a_gradient_is_wanted() -> None:
    x = torch.randn(1, 384, requires_grad=True)
    before = x.detach().clone()
    with torch.enable_grad():
        gelu(x).sum().backward()
    assert torch.equal(x, before)
    assert x.grad is not None
    assert bool(x.grad.any())


def test_compiled_ones_are_for_single_precision_on_a_processor() -> None:
    assert fast.compiles(torch.zeros(1))
    assert not fast.compiles(torch.zeros(1).double())
    assert not fast.compiles(torch.zeros(1, device="meta"))


def test_code_is_compiled_where_there_is_not_a_place_to_keep_it() -> None:
    names: dict[str, object] = {}
    exec("def double(x):\n    for i in range(len(x)):\n        x[i] *= 2\n", names)  # has no file
    x = np.ones(3, np.float32)
    compiled(F32[::1])(names["double"])(x)  # type: ignore[arg-type]
    assert x.tolist() == [2, 2, 2]


# Page faults of a loop that frees one tensor each time round, every time a larger one.
COUNT_FAULTS = """
import resource, sys, torch
from costream.nn.allocator import keep_freed_memory
torch.ones(1000)
if sys.argv[1] == "keep":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for k in range(1, 41):
    torch.ones(100_000 * k)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    command = [sys.executable, "-c", COUNT_FAULTS, mode]
    root = Path(__file__).resolve().parents[2]
    return int(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_freed_tensors_are_used_again() -> None:
    assert faults("keep") < faults("leave") / 4
