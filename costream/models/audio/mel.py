"""Streaming log-mel spectrograms for audio blocks of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.blas import matrix_product
from costream.nn.state import State, zeros


@dataclass
class LogMelState(State):
    """The samples of each stream that later frames need."""

    held: Tensor  # [B, window - 1], the newest last
    samples: Tensor  # int64 [B], processed so far


class LogMel(nn.Module):
    """log(M |STFT|^power + offset) for a matrix M of triangular bands.

    Frame k covers the samples k * hop to k * hop + window - 1, counted from ``lead`` zeros before
    the first one: frames are not centred, so none needs later samples. Frames shorter than the
    Fourier transform are zero-padded at the end. ``matrix`` [fft / 2 + 1, bands] comes with the
    weights; ``fill`` computes one.

    Args:
        bands: of the matrix. ``window``, ``hop``, ``fft``, ``lead``: samples.
        power: 1 for magnitudes, 2 for power.
        offset: added before the logarithm.

    Raises ValueError unless 0 < hop <= window <= fft and 0 <= lead < window.
    """

    def __init__(
        self,
        bands: int = 64,
        window: int = 500,
        hop: int = 250,
        fft: int = 512,
        lead: int = 250,
        power: int = 2,
        offset: float = 1e-7,
    ) -> None:
        super().__init__()
        if not (0 < hop <= window <= fft and 0 <= lead < window and power in (1, 2)):
            sizes = f"window {window}, hop {hop}, fft {fft}, lead {lead}, power {power}"
            raise ValueError(f"inconsistent spectrogram settings: {sizes}")
        self.bands, self.window, self.hop, self.fft, self.lead = bands, window, hop, fft, lead
        self.power, self.offset = power, offset
        self.matrix: Tensor
        self.hann: Tensor
        self.register_buffer("matrix", torch.zeros(fft // 2 + 1, bands))
        hann = torch.hann_window(window, periodic=True, dtype=torch.float64)
        self.register_buffer("hann", hann.float(), persistent=False)

    def fill(self, rate_hz: int, low_hz: float, high_hz: float) -> LogMel:
        """Set the matrix to that of ``librosa.filters.mel`` (Slaney's scale and norm)."""
        from librosa.filters import mel  # takes seconds to import, and only training needs it

        filters = mel(sr=rate_hz, n_fft=self.fft, n_mels=self.bands, fmin=low_hz, fmax=high_hz)
        self.matrix.copy_(torch.from_numpy(filters).t())
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the frames [B, K, bands] of a recording [B, N]; K may be 0."""
        return self._frames(F.pad(x, (self.lead, 0)))[0]

    def init_state(self, batch_size: int = 1) -> LogMelState:
        """Return the initial state of a batch of streams."""
        held = zeros(batch_size, self.window - 1, like=self.matrix)
        return LogMelState(held, zeros(batch_size))

    def forward_steps(self, x: Tensor, state: LogMelState) -> Tensor:
        """Take N more samples [B, N] of every stream, return the frames they complete.

        N is arbitrary. The frames [B, K, bands] equal those of ``forward`` over the recording.
        Raises ValueError for streams whose frames do not end together.
        """
        counts = {self._kept(int(n)) for n in state.samples.tolist()}
        if len(counts) > 1:
            raise ValueError("streams whose frames end at different samples cannot step together")
        (begin,) = counts
        rows = torch.cat([state.held[:, self.window - 1 - begin :], x], 1)
        frames, used = self._frames(rows)
        rest = rows[:, used:].detach()
        if rest.shape[1]:
            state.held[:, -rest.shape[1] :] = rest
        state.samples += x.shape[1]
        return frames

    def count_macs(self, frames: int = 1) -> int:
        """Return the multiply-accumulates of ``frames`` frames: the FFT and the matrix."""
        stages = (self.fft - 1).bit_length()
        return frames * (self.window + self.fft * stages + self.matrix.numel())

    def _kept(self, samples: int) -> int:
        """Return the number of stored samples of a stream after ``samples`` samples."""
        length = samples + self.lead
        return length - self._count(length) * self.hop

    def _count(self, length: int) -> int:
        return max(0, (length - self.window) // self.hop + 1)

    def _frames(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return all frames of these samples [B, N], and the number of samples no longer needed."""
        count = self._count(rows.shape[1])
        if not count:
            return rows.new_zeros(rows.shape[0], 0, self.bands), 0
        power = self._power(rows[:, : (count - 1) * self.hop + self.window])
        return (power @ self.matrix).add_(self.offset).log_(), count * self.hop

    def _power(self, rows: Tensor) -> Tensor:
        """Return |STFT|^power [B, K, fft / 2 + 1] of samples [B, N]."""
        functional = torchaudio_functional() if rows.is_cuda else None
        if functional is not None:
            # It centres a short window in the transform, which does not change magnitudes; the
            # padding makes it cover the same samples.
            margin = self.fft - self.window
            rows = F.pad(rows, (margin // 2, margin - margin // 2))
            sizes = (self.fft, self.hop, self.window, self.power)
            spectrum = functional.spectrogram(rows, 0, self.hann, *sizes, False, center=False)
            return cast(Tensor, spectrum.transpose(1, 2))
        windows = rows.unfold(1, self.window, self.hop) * self.hann
        bins = torch.fft.rfft(windows, self.fft)
        # Summing the squares over a last axis of size two takes three times as long.
        power: Tensor = bins.real.square() + bins.imag.square()
        return power if self.power == 2 else power.sqrt()


class SpectrumState:
    """Mixin of the states of a ``SpectrumFrontend``."""

    newest: Tensor | None = None  # spectrogram of the last steps, for display; not saved


class SpectrumFrontend:
    """Base of audio frontends whose tokens are computed from a spectrogram."""

    takes = "audio"

    def forward_steps(self, x: Tensor, state: Any) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens [B, T, D]."""
        raise NotImplementedError

    def forward_step(self, x: Tensor, state: Any) -> Tensor:
        """Take a block [B, block] of every stream, return its token [B, D]."""
        return self.forward_steps(x[:, None], state)[:, 0]

    def newest_spectrum(self, state: Any) -> Tensor:
        """Return the log-mel frames of the last call, [B, frames, bands]."""
        newest: Tensor | None = state.newest
        if newest is None:
            raise ValueError("no audio has been processed yet")
        return newest


def torchaudio_functional() -> Any:
    """Return ``torchaudio.functional``, or None if it cannot be imported.

    The wheels on PyPI are built for CUDA and cannot be imported with a CPU-only torch. Results
    are the same within rounding, so there is no warning.
    """
    try:
        from torchaudio import functional
    except (ImportError, OSError, RuntimeError):
        return None
    return functional


class MelBuffers:
    """Buffers for blocks of ``size`` samples of B streams, after the samples from before.

    Args:
        mel: the spectrogram; its tensors are read at each block, in their present memory.
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
        self._bins, self._parts = torch.view_as_complex(pairs), pairs
        self._squares = zeros(*pairs.shape, like=held)
        self._real, self._imaginary = self._squares.unbind(3)
        self._power = zeros(streams, frames, bins, like=held)
        self._bands = zeros(streams, frames, mel.bands, like=held)
        self._offset = torch.full_like(self._bands[0, 0], mel.offset)
        self._multiply = matrix_product(
            self._power.flatten(0, 1), mel.matrix, self._bands.flatten(0, 1)
        )
        self._mel = mel

    def step(self, x: Tensor) -> Tensor:
        """Take a block [B, size], return the log-mel frames [B, size / hop, bands] it completes."""
        mel = self._mel
        self._new.copy_(x)
        torch.mul(self._windows, mel.hann, out=self._framed)
        torch.fft.rfft(self._padded, out=self._bins)
        torch.mul(self._parts, self._parts, out=self._squares)
        torch.add(self._real, self._imaginary, out=self._power)
        if mel.power == 1:
            self._power.sqrt_()
        self.held.copy_(self._newest)
        self._multiply()
        return self._bands.add_(self._offset).log()
