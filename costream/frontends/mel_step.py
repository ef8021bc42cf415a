"""Log-mel spectrogram of single blocks on preallocated buffers; see ``frontends.audio_step``."""

from __future__ import annotations

import torch
from torch import Tensor

from costream.frontends.mel import LogMel
from costream.nn.state import zeros


class MelBuffers:
    """Buffers for blocks of ``size`` samples of B streams, after the samples still needed.

    Args:
        mel: the spectrogram; its values are read at each block, but not its device and dtype.
        held: of its state, [B, window - 1]. The attribute ``held`` starts as a copy and is updated
            by each block.
        size: samples per block, a whole number of hops and no fewer than a window.

    Frames must end with blocks, as in streams whose lead and blocks are whole hops.
    """

    def __init__(self, mel: LogMel, held: Tensor, size: int) -> None:
        streams, before = held.shape
        self.size = size
        block = zeros(streams, before + size, like=held)
        self.held, self._new = block[:, :before], block[:, before:]
        self.held.copy_(held)
        self._newest = block[:, size:]
        overlap = mel.window - mel.hop
        self._windows = block[:, before - overlap :].unfold(1, mel.window, mel.hop)
        frames = self._windows.shape[1]
        self._padded = zeros(streams, frames, mel.fft, like=held)
        self._framed = self._padded[:, :, : mel.window]
        bins = mel.fft // 2 + 1
        pairs = zeros(streams, frames, bins, 2, like=held)
        self._bins = torch.view_as_complex(pairs)
        self._real, self._imaginary = pairs.unbind(3)
        self._power = zeros(streams, frames, bins, like=held)
        self._rows = self._power.flatten(0, 1)
        self._shape = (streams, frames, mel.bands)
        self._offset = torch.full_like(self._rows[0, : mel.bands], mel.offset)
        self._mel = mel

    def step(self, x: Tensor) -> Tensor:
        """Take a block [B, size], return the log-mel frames [B, size / hop, bands] it completes."""
        mel = self._mel
        self._new.copy_(x)
        torch.mul(self._windows, mel.hann, out=self._framed)
        torch.fft.rfft(self._padded, out=self._bins)
        torch.mul(self._real, self._real, out=self._power)
        self._power.addcmul_(self._imaginary, self._imaginary)
        if mel.power == 1:
            self._power.sqrt_()
        self.held.copy_(self._newest)
        return torch.addmm(self._offset, self._rows, mel.matrix).log_().view(self._shape)
