"""Lost frames of H.264, by their numbers."""

from __future__ import annotations

import re
from typing import Any

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.sources.media.frame_numbers import FrameNumbers
from kit.media import make_video


@pytest.fixture(scope="module", params=[0, 2], ids=["simple", "with B-frames"])
def packets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the packets of 60 frames with a keyframe each 20."""
    path = tmp_path_factory.mktemp("ts") / "a.ts"
    make_video(path, 60, keyframe_every=20, b_frames=request.param)
    with av.open(str(path)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def missing(packets: list[Any]) -> list[int]:
    numbers = FrameNumbers(None)
    return [numbers.missing_before(packet) for packet in packets]


def test_nothing_is_missing_in_an_intact_stream(packets: list[Any]) -> None:
    assert missing(packets) == [0] * 60


@settings(deadline=None, max_examples=50)
@given(first=st.integers(1, 18), count=st.integers(1, 12))
def test_lost_frames_are_missing_before_the_next(
    packets: list[Any], first: int, count: int
) -> None:
    """Frames that no other refers to are not missed: they have no number of their own."""
    last = min(first + count, 19)
    lost = packets[first:last]
    found = missing(packets[:first] + packets[last:])
    needed = sum(bool(re.search(b"\0\0\1[\x21\x41\x61]", bytes(packet))) for packet in lost)
    assert sum(found) == needed
    assert needed in (0, found[first])


@given(data=st.binary(max_size=200))
def test_noise_is_not_a_loss_that_cannot_be_counted(data: bytes) -> None:
    numbers = FrameNumbers(data)
    assert numbers.missing_before(av.Packet(data or b"\0")) >= 0
