"""Re-blocking: whatever lengths come in, the same blocks on the same clock go out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import AudioFormat, Gap
from costream.sources.media.block_cutter import BlockSplitter

SOUND = AudioFormat(16000, 400)


def ramp(count: int) -> np.ndarray:
    return (np.arange(count) / count).astype(np.float32)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 1500), max_size=30),
    st.integers(20, 900),
    st.sampled_from([8000, 16000, 44100]),
    st.fractions(0, 10**5),
)
def test_any_lengths_give_the_same_blocks(
    lengths: list[int], size: int, rate_hz: int, start_s: Fraction
) -> None:
    """Against cutting the whole at once: the samples, the numbers and the times."""
    x = ramp(sum(lengths))
    blocks = BlockSplitter(AudioFormat(rate_hz, size), start_s)
    done = []
    at = 0
    for length in lengths:
        done += blocks.push(x[at : at + length])
        at += length
        assert blocks.next_s == float(start_s + Fraction(at, rate_hz))
    done += blocks.finish()
    whole, rest = divmod(len(x), size)
    padded = rest > 0 and (2 * rest >= size or whole == 0)
    assert len(done) == whole + padded
    flat = np.concatenate([np.empty(0, np.float32), *(b.samples for b in done)])
    kept = x[: len(flat)]
    np.testing.assert_array_equal(flat[: len(kept)], kept)
    assert not flat[len(kept) :].any()
    assert [b.i for b in done] == list(range(len(done)))
    assert [b.time_s for b in done] == [
        float(start_s + Fraction((k + 1) * size, rate_hz)) for k in range(len(done))
    ]
    assert all(b.samples.dtype == np.float32 for b in done)


@pytest.mark.parametrize(("count", "given_out"), [(1, 1), (399, 1), (599, 1), (600, 2), (0, 0)])
def test_the_last_block(count: int, given_out: int) -> None:
    """Given when half of it is sound, or when it is the only one."""
    blocks = BlockSplitter(SOUND)
    assert len(blocks.push(ramp(count)) + blocks.finish()) == given_out


def test_blocks_are_the_takers_own() -> None:
    x = ramp(1000)
    blocks = BlockSplitter(SOUND)
    first, second = blocks.push(x, arrived_s=5.0)
    kept = first.samples.copy()
    x[:] = 9.0
    blocks.push(x)
    np.testing.assert_array_equal(first.samples, kept)
    assert (first.arrived_s, second.arrived_s) == (5.0, 5.0)


def test_a_gap_starts_the_clock_again() -> None:
    """The block that was begun belongs to the gap; the numbers go on."""
    blocks = BlockSplitter(SOUND, 2.0)
    before = blocks.push(ramp(500))
    gap = blocks.restart(7.5, "lost")
    after = blocks.push(np.ones(400, np.float32))
    assert [b.time_s for b in before] == [2.025]
    assert gap == Gap(2.025, 7.5, "lost")
    assert [(b.i, b.time_s) for b in after] == [(1, 7.525)]
    assert (after[0].samples == 1).all()
    assert blocks.finish() == []


def test_pts_counts_samples_of_the_source() -> None:
    blocks = BlockSplitter(AudioFormat(16000, 4000), 1.0, source_hz=44100)
    assert [b.pts for b in blocks.push(ramp(12000))] == [44100, 55125, 66150]


def test_a_week_without_drift() -> None:
    """The clock counts samples: a block late in the week ends where integers say."""
    blocks = BlockSplitter(AudioFormat(16000, 1 << 20), 0.1)
    piece = np.zeros(1 << 20, np.float32)
    times = [blocks.push(piece)[0].time_s for _ in range(50)]
    assert times == [float(Fraction(0.1) + Fraction(k << 20, 16000)) for k in range(1, 51)]
