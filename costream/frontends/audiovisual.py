"""Pictures and sound to tokens on one clock: what two frontends say, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from costream.frontends.registry import load_frontend
from costream.nn.state import State, zeros
from costream.records import VideoFrame

_PATIENCE_S = 2.0  # a token of sound that is older is none


@dataclass
class AudioVisualState(State):
    """What a stream keeps: that of both frontends, and the newest token of sound."""

    video: State
    audio: State
    heard: Tensor  # [B, D of sound], zeros before there is one
    age: Tensor  # int64 [B], steps since it came


def blocks_of(frame: VideoFrame) -> Tensor:
    """Give the blocks of sound beside a picture, float32 [n, block]; [0] where there are none."""
    if not frame.sound:
        return torch.zeros(0)
    return torch.from_numpy(np.stack([block.samples for block in frame.sound]))


class AudioVisual(nn.Module):
    """The token of the newest picture, and behind it the newest of the sound.

    Fusion by concatenation, as Hedegaard et al. (ICLR 2023, section 4.1) fuse features of RGB,
    flow and sound. The clock is that of the pictures; a token of sound is used from the step on at
    which its last sample is known, until the next one comes. Without sound, and two seconds after
    it has ended, that part is zeros.

    Args:
        video, audio: keys of ``frontends.registry.FRONTENDS``. ``video_arguments``,
            ``audio_arguments``: theirs.
        rate_hz: steps a second, for what a step costs and how many are two seconds.
    """

    takes = "video"
    video: Any
    audio: Any

    def __init__(
        self,
        video: str = "tdn",
        audio: str = "audio",
        video_arguments: Mapping[str, Any] | None = None,
        audio_arguments: Mapping[str, Any] | None = None,
        rate_hz: float = 8.0,
    ) -> None:
        super().__init__()
        self.video = load_frontend(video, **(video_arguments or {}))
        self.audio = load_frontend(audio, **(audio_arguments or {}))
        if (self.video.takes, self.audio.takes) != ("video", "audio"):
            raise ValueError(f"{video} and {audio} are not of video and of sound")
        self.rate_hz, self.patience = rate_hz, round(_PATIENCE_S * rate_hz)
        self.box, self.frames = self.video.box, int(getattr(self.video, "frames", 1))
        self.streams: tuple[str, ...] = getattr(self.video, "streams", ())
        self.sample_rate_hz, self.block = int(self.audio.sample_rate_hz), int(self.audio.block)
        seen: dict[str, int] = getattr(self.video, "parts", {"rgb": int(self.video.token_width)})
        self.parts = {**seen, "audio": int(self.audio.token_width)}
        self.token_width = sum(self.parts.values())

    def prepare(self, given: Any) -> Any:
        """Give what the frontend of pictures makes of a picture, or of several."""
        return self.video.prepare(given)

    def init_state(self, batch_size: int = 1) -> AudioVisualState:
        """Give the state of streams that have seen and heard nothing."""
        like = next(self.audio.parameters())
        heard = zeros(batch_size, self.parts["audio"], like=like)
        video, audio = self.video.init_state(batch_size), self.audio.init_state(batch_size)
        return AudioVisualState(video, audio, heard, zeros(batch_size))

    def forward_step(
        self, frames: Tensor, state: AudioVisualState, sound: Sequence[Tensor] = ()
    ) -> Tensor:
        """Give the tokens [B, D] of the next pictures, as the frontend of pictures takes them.

        ``sound``: for each stream the blocks that have ended since the step before, [n, block]; n
        may be 0, and nothing at all says that none has.
        """
        return torch.cat(
            (self.video.forward_step(frames, state.video), self.hear(sound, state)), -1
        )

    def hear(self, sound: Sequence[Tensor], state: AudioVisualState) -> Tensor:
        """Give the part of the sound [B, D of sound] of the next step; see ``forward_step``."""
        state.age += 1
        for row, blocks in enumerate(sound):
            if len(blocks):
                own = state.audio.take([row])
                state.heard[row] = self.audio.forward_steps(blocks[None], own)[0, -1]
                state.audio.put([row], own)
                state.age[row] = 0
        return state.heard * (state.age <= self.patience).to(state.heard)[:, None]

    def count_macs(self) -> int:
        """Multiply-accumulates of one step, with the share of a block that comes in it."""
        blocks = self.sample_rate_hz / (self.block * self.rate_hz)
        return int(self.video.count_macs() + round(blocks * self.audio.count_macs()))
