"""Pictures and sound on one clock: each part says what it says alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from costream.models.oad.audiovisual import AudioVisual

SMALL: dict[str, Any] = {
    "video_arguments": {"box": (32, 24), "lags": (1, 3), "widths": (8, 8, 8, 8)},
    "audio_arguments": {"token_width": 16, "widths": (4,) * 7, "feature_width": 8},
}
STEPS = 12


@pytest.fixture
def net() -> AudioVisual:
    torch.manual_seed(0)
    return AudioVisual(**SMALL, rate_hz=2.0).eval()  # four steps without sound are two seconds


def pictures(batch: int) -> Tensor:
    return torch.randint(0, 256, (STEPS, batch, 3, 24, 32), dtype=torch.uint8)


@torch.no_grad()
def test_streams_hear_what_is_theirs(net: AudioVisual) -> None:
    frames, waves = pictures(2), 0.1 * torch.randn(2, STEPS, net.block)
    nothing = waves[0, :0]
    # The first stream hears a block every other step, the second two at once and then none.
    when = [[waves[0, k : k + 1] if k % 2 else nothing for k in range(STEPS)]]
    when += [[waves[1, :2] if k == 1 else nothing for k in range(STEPS)]]
    state = net.init_state(2)
    steps = [net.forward_step(frames[k], state, [when[0][k], when[1][k]]) for k in range(STEPS)]
    for row in range(2):
        own = net.video.init_state(1)
        heard, audio, age = torch.zeros(1, 16), net.audio.init_state(1), 0
        for k, token in enumerate(steps):
            seen = net.video.forward_step(frames[k, row : row + 1], own)
            age += 1
            for block in when[row][k]:
                heard, age = net.audio.forward_step(block[None], audio), 0
            expected = torch.cat((seen, heard if age <= 4 else 0 * heard), 1)
            torch.testing.assert_close(token[row : row + 1], expected, rtol=1e-4, atol=1e-5)
    assert steps[3][1, -16:].any()
    assert not steps[-1][1, -16:].any()


@torch.no_grad()
def test_without_sound_its_part_is_zeros(net: AudioVisual) -> None:
    state = net.init_state(1)
    token = net.forward_step(pictures(1)[0], state)
    assert token.shape == (1, net.token_width)
    assert token[:, :16].any()
    assert not token[:, 16:].any()


@torch.no_grad()
def test_a_row_forgets_what_it_heard(net: AudioVisual) -> None:
    frames, state = pictures(2), net.init_state(2)
    blocks = [torch.randn(1, net.block)] * 2
    net.forward_step(frames[0], state, blocks)
    state.reset([1])
    token = net.forward_step(frames[1], state)
    assert token[0, 16:].any()
    assert not token[1, 16:].any()


def test_costs_and_parts(net: AudioVisual) -> None:
    assert net.parts == {"rgb": 16, "audio": 16}
    two = 2 * net.audio.count_macs()  # blocks of a quarter of a second, half a second a step
    assert net.count_macs() == net.video.count_macs() + two
