"""Log-mel frames as tokens, for networks that convolve spectrograms: YAMNet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from costream.models.audio.mel import LogMel, LogMelState, SpectrumFrontend, SpectrumState
from costream.models.audio.vggish import BANDS, mel_matrix
from costream.models.frontend import frontend
from costream.nn.state import State

OFFSET = 0.001  # added to magnitudes before the logarithm
_WINDOW, _HOP, _FFT = 400, 160, 512  # samples


@dataclass
class LogMelFramesState(SpectrumState, State):
    """State of the frontend for each stream."""

    mel: LogMelState


@frontend("logmel", order=11)
class LogMelFrames(SpectrumFrontend, nn.Module):
    """Audio frontend: a token is the newest ``hop_frames`` frames of 10 ms, [hop_frames, 64].

    The spectrogram is YAMNet's: the bands of VGGish, ln(magnitude + 0.001). Frames end where
    blocks end, so the first one covers 240 zeros before the sound.

    Args:
        hop_frames: frames from one token to the next. ValueError unless it is positive.
    """

    sample_rate_hz = 16_000

    def __init__(self, hop_frames: int = 48) -> None:
        super().__init__()
        if hop_frames < 1:
            raise ValueError(f"hop_frames {hop_frames} is not positive")
        self.hop_frames = hop_frames
        lead = _WINDOW - _HOP
        self.mel = LogMel(BANDS, _WINDOW, _HOP, _FFT, lead=lead, power=1, offset=OFFSET)
        self.mel.register_buffer("matrix", mel_matrix().float(), persistent=False)
        self.block = hop_frames * _HOP

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, T, hop_frames, 64] of T blocks [B, T, block]."""
        return self._tokens(self.mel(x.flatten(1)))

    def init_state(self, batch_size: int = 1) -> LogMelFramesState:
        """Return the initial state of a batch of streams."""
        return LogMelFramesState(self.mel.init_state(batch_size))

    def forward_steps(self, x: Tensor, state: LogMelFramesState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens."""
        state.newest = self.mel.forward_steps(x.flatten(1), state.mel)
        return self._tokens(state.newest)

    def newest_spectrum(self, state: LogMelFramesState) -> Tensor:
        """Return the frames of the last call, [B, frames, 64]: ln power, 2 ln magnitude."""
        return 2 * super().newest_spectrum(state)

    def count_macs(self, hops: int = 1) -> int:
        """Return the multiply-accumulates of ``hops`` hops of one stream."""
        return self.mel.count_macs(hops * self.hop_frames)

    def _tokens(self, frames: Tensor) -> Tensor:
        return torch.unflatten(frames, 1, (-1, self.hop_frames))
