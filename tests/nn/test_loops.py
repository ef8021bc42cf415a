from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from costream.nn.fast import FrameLoops, prefers_one_thread
from costream.nn.numba_kernels import F32, CompiledLoops, compiled
from costream.nn.video3d.convolution import select_loops


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [(7, 5, 3), (64, 64, 24)])
def test_compiled_loops_give_what_pytorch_gives(size: tuple[int, int, int], threads: int) -> None:
    torch.manual_seed(0)
    ring = torch.randn(2, 4, *size)
    ring[0, 0, 0, 0, 0] = torch.nan
    ring[1, 0, 0, 0, 1] = torch.inf
    other, shift, taps = ring[:, 1], torch.randn(size[2]), torch.randn(4, size[2])
    results = []
    for kind in (FrameLoops(), CompiledLoops()):
        mine = ring.clone()
        frames, out = mine[:, 0], torch.full_like(mine, 9)[:, 3]
        kind.weigh(ring, 3, taps, out)
        kind.rectify(frames, shift, None)
        kind.rectify(out, shift, other)
        results.append((mine, out))
    torch.testing.assert_close(results[0], results[1], equal_nan=True)
    assert results[1][0][0, 0, 0, 0, 0].isnan()
    expected = (ring[:, [3, 0, 1, 2]] * taps[:, None, None]).sum(1) + shift + other
    torch.testing.assert_close(results[1][1], expected.relu(), equal_nan=True)


def test_many_numbers_are_divided_among_threads(threads: int) -> None:
    assert prefers_one_thread(1 << 10)
    assert prefers_one_thread(1 << 20) == (threads == 1)


def test_compiled_ones_are_for_single_precision_on_a_processor() -> None:
    assert type(select_loops(torch.zeros(1))) is CompiledLoops
    assert type(select_loops(torch.zeros(1).double())) is FrameLoops
    assert type(select_loops(torch.zeros(1, device="meta"))) is FrameLoops


def test_code_is_compiled_where_there_is_no_place_to_keep_it() -> None:
    names: dict[str, object] = {}
    exec("def double(x):\n    for i in range(len(x)):\n        x[i] *= 2\n", names)  # has no file
    x = np.ones(3, np.float32)
    compiled(F32[::1])(names["double"])(x)  # type: ignore[arg-type]
    assert x.tolist() == [2, 2, 2]
