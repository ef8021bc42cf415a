"""Audio-visual frontend: video and audio tokens concatenated at the frame rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from costream.core.records import VideoFrame
from costream.models.frontend import frontend, load_frontend
from costream.nn.state import State, zeros

_AUDIO_TIMEOUT_S = 2.0  # older audio tokens are replaced by zeros


@dataclass
class AudioVisualState(State):
    """State of both frontends and the newest audio token of each stream."""

    video: State
    audio: State
    heard: Tensor  # [B, D of audio], zeros before the first token
    age: Tensor  # int64 [B], steps since it came


def stack_audio_blocks(frame: VideoFrame) -> Tensor:
    """Return the audio blocks of a video frame, float32 [n, block]; [0] if there are none."""
    if not frame.sound:
        return torch.zeros(0)
    return torch.from_numpy(np.stack([block.samples for block in frame.sound]))


@frontend("audiovisual", order=9)
class AudioVisual(nn.Module):
    """Concatenates the token of the newest video frame and the newest audio token.

    Fusion by concatenation, as Hedegaard et al. (ICLR 2023, section 4.1) fuse features of RGB,
    flow and audio. Steps follow the video frames; an audio token is used from the step at which
    its last sample has arrived, until the next token. Without audio, and two seconds after its
    end, this part is zeros.

    Args:
        video, audio: keys of ``models.frontend.FRONTENDS``. ``video_arguments``,
            ``audio_arguments``: their keyword arguments.
        rate_hz: steps per second, for the cost of a step and the number of steps in two seconds.
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
            raise ValueError(f"{video} and {audio} are not a video and an audio frontend")
        self.rate_hz, self.patience = rate_hz, round(_AUDIO_TIMEOUT_S * rate_hz)
        self.box, self.frames = self.video.box, int(getattr(self.video, "frames", 1))
        self.streams: tuple[str, ...] = getattr(self.video, "streams", ())
        self.sample_rate_hz, self.block = int(self.audio.sample_rate_hz), int(self.audio.block)
        parts: dict[str, int] = getattr(self.video, "parts", {"rgb": int(self.video.token_width)})
        self.parts = {**parts, "audio": int(self.audio.token_width)}
        self.token_width = sum(self.parts.values())

    def prepare(self, frames: Any) -> Any:
        """Return the input of the video frontend for a frame, or for several."""
        return self.video.prepare(frames)

    def init_state(self, batch_size: int = 1) -> AudioVisualState:
        """Return the initial state of a batch of streams."""
        like = next(self.audio.parameters())
        heard = zeros(batch_size, self.parts["audio"], like=like)
        video, audio = self.video.init_state(batch_size), self.audio.init_state(batch_size)
        return AudioVisualState(video, audio, heard, zeros(batch_size))

    def forward_step(
        self, frames: Tensor, state: AudioVisualState, sound: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the tokens [B, D] of the next frames, as prepared by the video frontend.

        ``sound``: for each stream the audio blocks that have ended since the previous step, [n,
        block]; n may be 0, and an empty sequence means none in any stream.
        """
        return torch.cat(
            (self.video.forward_step(frames, state.video), self.forward_audio(sound, state)), -1
        )

    def forward_audio(self, sound: Sequence[Tensor], state: AudioVisualState) -> Tensor:
        """Return the audio part [B, D of audio] of the next step's token; see ``forward_step``."""
        state.age += 1
        for row, blocks in enumerate(sound):
            if len(blocks):
                row_state = state.audio.take([row])
                state.heard[row] = self.audio.forward_steps(blocks[None], row_state)[0, -1]
                state.audio.put([row], row_state)
                state.age[row] = 0
        return state.heard * (state.age <= self.patience).to(state.heard)[:, None]

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one step, with its share of an audio block."""
        blocks = self.sample_rate_hz / (self.block * self.rate_hz)
        return int(self.video.count_macs() + round(blocks * self.audio.count_macs()))
