"""Convolutional audio backbone that processes each spectrogram frame only once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.audio.mel import (
    LogMel,
    LogMelState,
    MelBuffers,
    SpectrumFrontend,
    SpectrumState,
)
from costream.models.blas import matrix_product
from costream.models.frontend import frontend
from costream.nn.convolution import TimeFrequencyConvolution
from costream.nn.fast import linear
from costream.nn.folding import Foldable, Folded
from costream.nn.graph import normalise, scale_and_shift
from costream.nn.state import State, zeros


class FoldedAudio(Folded):
    """The folded layers of a ``ContinualAudioNet`` in evaluation, for single hops.

    A hop consists of copies and matrix products on preallocated buffers.
    """

    def __init__(self, net: ContinualAudioNet) -> None:
        sources = [*net.layers.parameters(), *net.layers.buffers(), net.centre, net.spread]
        super().__init__(sources)
        self.layers = net.blocks
        self.scale = 1 / net.spread
        self.shift = -net.centre * self.scale
        self._matrices = [_matrix(*layer.folded()) for layer in self.layers]

    def lay_out(
        self,
        mel: MelBuffers,
        past: Sequence[Tensor],
        features: Tensor,
        counts: tuple[Tensor, Tensor],
        frames: int,
    ) -> HopBuffers:
        """Return the buffers for hops of ``frames`` spectrogram frames that follow ``past``.

        ``mel``: the buffers of the spectrogram. ``past``: of each layer, [B, K_time - stride, F,
        I]. ``features``: of the last hops, [B, N, W]. ``counts``: of hops and samples so far, [B].
        """
        buffers = []
        for layer, frames_before, matrix in zip(self.layers, past, self._matrices, strict=True):
            buffers.append(LayerBuffers(layer, matrix, frames_before, frames))
            frames //= layer.convolution.stride[0]
        return HopBuffers(self, mel, buffers, features, counts)


class LayerBuffers:
    """Buffers of a layer for the hops of B streams: past frames, new frames and their patches.

    Past and new frames, and the zero padding of the bands, are one block of memory; a hop copies
    its patches from there (im2col) and multiplies them by the weights. With a few frames at a
    time, rearranging them would take as long as the product. ``matrix``: see ``_matrix``. NumPy
    copies a few numbers in half the time.
    """

    def __init__(self, layer: AudioLayer, matrix: Tensor, past: Tensor, frames: int) -> None:
        convolution, (streams, before, bands, width) = layer.convolution, past.shape
        (k_time, k_band), (over_time, over_bands) = convolution.kernel, convolution.stride
        pad = convolution.pads[1]
        block = zeros(streams, before + frames, bands + 2 * pad, width, like=past)
        inside = block[:, :, pad : pad + bands]
        self.past, self.new = inside[:, :before], inside[:, before:]
        self.past.copy_(past)
        newest = inside[:, frames:].numpy()  # the past frames of the next hop
        self._kept = (self.past.numpy(), newest) if before else None
        stream, frame, band, one = block.stride()
        images = (streams, frames // over_time, convolution.bands(bands))
        patch = (k_time, k_band * width)
        strides = (stream, over_time * frame, over_bands * band, frame, one)
        self._patches = block.as_strided((*images, *patch), strides).numpy()
        rows = zeros(math.prod(images), len(matrix), like=past)
        rows[:, -1] = 1  # for the bias
        self._columns = rows[:, :-1].view(*images, *patch).numpy()
        out = zeros(len(rows), matrix.shape[1], like=past)
        self.images = out.view(*images, -1)
        self._multiply = matrix_product(rows, matrix, out)
        self._around = self.new if layer.residual else None

    def step(self, out: Tensor) -> None:
        """Write the layer's output for the frames in ``new`` into ``out`` [B, T', F', O]."""
        np.copyto(self._columns, self._patches)
        self._multiply()
        if self._around is not None:
            self.images.add_(self._around)
        torch.clamp_min(self.images, 0, out=out)
        if self._kept is not None:
            np.copyto(*self._kept)


class HopBuffers:
    """Buffers of all layers for the hops of B streams of the network ``folded``.

    ``features``, ``counts``: see ``lay_out``; each hop updates them in place, as it does ``past``.
    """

    def __init__(
        self,
        folded: FoldedAudio,
        mel: MelBuffers,
        layers: Sequence[LayerBuffers],
        features: Tensor,
        counts: tuple[Tensor, Tensor],
    ) -> None:
        self.folded, self.mel = folded, mel
        self.past = tuple(layer.past for layer in layers)
        self._first = layers[0].new.squeeze(3)
        last = layers[-1].images
        out = zeros(*last.shape, like=last)
        outs = [*(layer.new for layer in layers[1:]), out]
        self._layers = list(zip(layers, outs, strict=True))
        streams, before, width = features.shape
        self.rows = zeros(streams, before + 1, width, like=last)  # past features and the newest
        self.mean = zeros(streams, width, like=last)  # of the rows
        # NumPy arithmetic on these takes a tenth to a third of the time of tensors.
        self._arrays = self.rows.numpy(), features.numpy(), self.mean.numpy()
        self._newest = out[:, :, 0].numpy()
        self._hops, self._samples = (count.numpy() for count in counts)
        self._size = mel.size

    def step(self, x: Tensor) -> tuple[Tensor, int]:
        """Take the samples of a hop [B, N], return its log-mel frames [B, T, bands].

        Also return the hop count of the youngest stream. The next call overwrites ``rows`` and
        ``mean``.
        """
        spectrogram = self.mel.step(x)
        torch.addcmul(self.folded.shift, spectrogram, self.folded.scale, out=self._first)
        for layer, out in self._layers:
            layer.step(out)
        rows, features, mean = self._arrays
        np.concatenate((features, self._newest), 1, out=rows)
        np.add.reduce(rows, 1, out=mean)
        mean /= rows.shape[1]
        np.copyto(features, rows[:, 1:])
        self._hops += 1
        self._samples += self._size
        return spectrogram, min(self._hops.tolist())


def _matrix(weight: Tensor, bias: Tensor) -> Tensor:
    """Return weight and bias as the matrix [K_time K_bands I + 1, O] that multiplies patches.

    The bias is the last row, for a column of ones, which saves an addition.
    """
    rows = weight.permute(0, 2, 3, 1).flatten(1)
    return torch.cat([rows, bias[:, None]], 1).t().contiguous()


# Strides of each layer in frames and bands; (1, 1): a residual layer. Each hop becomes one frame.
_STRIDES = ((2, 2), (1, 2), (1, 1), (2, 2), (1, 1), (2, 2), (1, 1))
_HOP_FRAMES = 16


@dataclass
class AudioState(SpectrumState, State):
    """State of the audio backbone for each stream."""

    mel: LogMelState
    past: tuple[Tensor, ...]  # of each convolution, the past frames that it needs
    features: Tensor  # [B, pool - 1, feature_width], of the last hops
    hops: Tensor  # int64 [B], processed so far

    def __post_init__(self) -> None:
        self.buffers: HopBuffers | None = None  # for single hops; ``past`` is a view of them


class AudioLayer(nn.Module):
    """Convolution and ReLU, with a residual connection where the shape does not change."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        norm: bool,
    ) -> None:
        super().__init__()
        self.convolution = TimeFrequencyConvolution(
            in_width, out_width, kernel, stride, bias=not norm
        )
        self.norm = nn.BatchNorm2d(out_width) if norm else None
        self.residual = stride == (1, 1) and in_width == out_width

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """Return [B, T', F', O] for a clip [B, T, F, I], or for the frames that follow ``past``."""
        y = self.convolution(x) if past is None else self.convolution.forward_steps(x, past)
        if self.norm is not None:
            y = normalise(self.norm, y)
        return F.relu_(y.add_(x) if self.residual else y)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the convolution with the norm folded in, without gradients."""
        weight, bias = self.convolution.weight.detach(), self.convolution.bias
        if self.norm is None:
            return weight, weight.new_zeros(len(weight)) if bias is None else bias.detach()
        scale, shift = scale_and_shift(self.norm)
        return weight * scale[:, None, None, None], shift


@frontend("audio", order=8)
class ContinualAudioNet(SpectrumFrontend, Foldable[FoldedAudio]):
    """Audio backbone with one token per hop of 16 spectrogram frames, from the last second.

    A convolutional network over a log-mel spectrogram, causal in time, yields one feature row per
    hop; a token is a projection of the mean of the last ``pool`` rows. Audio networks usually
    take windows of a second (VGGish, YAMNet) and so process a frame four times when these are a
    quarter of a second apart; here every frame goes through every layer once.

    Args:
        token_width: D of the tokens.
        widths: of the seven layers; the third, fifth and seventh are residual, so each is as
            wide as the one before it.
        feature_width: of the rows that are averaged.
        pool: hops averaged in a token.
        sample_rate_hz: of the audio; a hop is 16 * 250 samples.
        norm: batch normalisation after each convolution, as needed to train; see ``fold``.

    Raises ValueError unless there are seven widths and residual layers keep the width.
    """

    exact = True  # tokens equal a recomputation of all hops that they average

    def __init__(
        self,
        token_width: int = 128,
        widths: Sequence[int] = (16, 40, 40, 80, 80, 144, 144),
        feature_width: int = 192,
        pool: int = 4,
        sample_rate_hz: int = 16_000,
        norm: bool = False,
    ) -> None:
        super().__init__()
        if len(widths) != len(_STRIDES) or any(widths[k] != widths[k - 1] for k in (2, 4, 6)):
            raise ValueError(f"widths {tuple(widths)}: need seven, equal where residual")
        self.token_width, self.sample_rate_hz = token_width, sample_rate_hz
        self.mel = LogMel()
        self.block = _HOP_FRAMES * self.mel.hop
        bands = self.mel.bands
        self.centre: Tensor
        self.spread: Tensor
        self.register_buffer("centre", torch.zeros(bands))  # of each band, over the training data
        self.register_buffer("spread", torch.ones(bands))
        self.layers = nn.ModuleList()
        self._bands: list[int] = []
        width = 1
        for out_width, stride in zip(widths, _STRIDES, strict=True):
            layer = AudioLayer(width, out_width, (3, 3), stride, norm)
            self.layers.append(layer)
            self._bands.append(bands)
            width, bands = out_width, layer.convolution.bands(bands)
        # A hop is now two frames of a few bands.
        self.layers.append(AudioLayer(width, feature_width, (2, bands), (2, 1), norm))
        self._bands.append(bands)
        self.pool = pool
        self.project = nn.Linear(feature_width, token_width)

    def resize(self) -> None:
        """Take the width of tokens from the weights."""
        self.token_width = self.project.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of T blocks [B, T, block], or of samples [B, T * block]."""
        return self.encode(self.mel(x.flatten(1)))

    def encode(self, spectrogram: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of log-mel frames [B, 16 T, bands]."""
        rows = self._normalise(spectrogram)
        for layer in self.layers:
            rows = layer(rows)
        features = F.pad(rows.squeeze(2), (0, 0, self.pool - 1, 0))
        return self._average(features, torch.zeros(1, dtype=torch.int64))

    def init_state(self, batch_size: int = 1) -> AudioState:
        """Return the initial state of a batch of streams."""
        parts = zip(self.blocks, self._bands, strict=True)
        past = tuple(layer.convolution.init_state(batch_size, bands) for layer, bands in parts)
        shape = (batch_size, self.pool - 1, self.project.in_features)
        features = zeros(*shape, like=self.project.weight)
        return AudioState(self.mel.init_state(batch_size), past, features, zeros(batch_size))

    def forward_step(self, x: Tensor, state: AudioState) -> Tensor:
        """Take a block [B, block] of every stream, return its token [B, D]."""
        return self._hop(x, state) if self._hops(x) else super().forward_step(x, state)

    def forward_steps(self, x: Tensor, state: AudioState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens [B, T, D]."""
        if x.shape[1] == 1 and self._hops(x):
            return self._hop(x[:, 0], state)[:, None]
        spectrogram = self.mel.forward_steps(x.flatten(1), state.mel)
        state.newest = spectrogram
        rows = self._normalise(spectrogram)
        for layer, past in zip(self.blocks, state.past, strict=True):
            rows = layer(rows, past)
        features = torch.cat([state.features, rows.squeeze(2)], 1)
        tokens = self._average(features, state.hops)
        state.features.copy_(features[:, features.shape[1] - self.pool + 1 :].detach())
        state.hops += x.shape[1]
        return tokens

    def _hops(self, x: Tensor) -> bool:
        """Return whether single hops are computed in buffers."""
        return x.is_cpu and not self.training and not torch.is_grad_enabled()

    def _hop(self, x: Tensor, state: AudioState) -> Tensor:
        """Take one block [B, block] of every stream, return its token [B, D]."""
        buffers = self._hop_buffers(state)
        state.newest, fewest = buffers.step(x)
        if fewest >= self.pool:
            return linear(self, "project", buffers.mean)
        return self._average(buffers.rows, state.hops - 1)[:, 0]

    def fold(self) -> FoldedAudio:
        """Return the folded layers, for single hops."""
        return FoldedAudio(self)

    def _hop_buffers(self, state: AudioState) -> HopBuffers:
        """Return the buffers for the hops of these streams."""
        folded = self.folded()
        if state.buffers is None or state.buffers.folded is not folded:
            mel = MelBuffers(self.mel, state.mel.held, self.block)
            counts = state.hops, state.mel.samples
            state.buffers = folded.lay_out(mel, state.past, state.features, counts, _HOP_FRAMES)
            state.past, state.mel.held = state.buffers.past, mel.held
        return state.buffers

    @property
    def receptive_field_s(self) -> float:
        """Seconds of audio that a token depends on."""
        reach, jump = 0, 1
        for layer in self.blocks:
            kernel, stride = layer.convolution.kernel[0], layer.convolution.stride[0]
            reach, jump = reach + (kernel - 1) * jump, jump * stride
        frames = reach + (self.pool - 1) * jump
        return (frames * self.mel.hop + self.mel.window) / self.sample_rate_hz

    def count_macs(self, hops: int = 1) -> int:
        """Return the multiply-accumulates of ``hops`` new hops of one stream."""
        frames = _HOP_FRAMES * hops
        total = self.mel.count_macs(frames)
        for layer, bands in zip(self.blocks, self._bands, strict=True):
            total += layer.convolution.count_macs(frames, bands)
            frames //= layer.convolution.stride[0]
        return total + hops * self.project.weight.numel()

    @property
    def dense_macs(self) -> int:
        """Multiply-accumulates of a token when all hops that it averages are recomputed."""
        return self.count_macs(self.pool) - (self.pool - 1) * self.project.weight.numel()

    @property
    def blocks(self) -> Sequence[AudioLayer]:
        """The layers, in order."""
        return cast(Sequence[AudioLayer], self.layers)

    def _average(self, features: Tensor, hops: Tensor) -> Tensor:
        """Return tokens [B, T, D] for features [B, pool - 1 + T, W] of streams after ``hops`` [B].

        Until there are ``pool`` hops, a token is the mean of all of them.
        """
        count = features.shape[1] - self.pool + 1
        total = features[:, self.pool - 1 :]
        for age in range(1, self.pool):
            total = total + features[:, self.pool - 1 - age :][:, :count]
        if min(hops.tolist()) + 1 >= self.pool:
            return linear(self, "project", total / self.pool)
        averaged = hops[:, None] + torch.arange(1, count + 1)
        means = total / averaged.clamp_(max=self.pool)[:, :, None].to(total)
        return linear(self, "project", means)

    def _normalise(self, spectrogram: Tensor) -> Tensor:
        return ((spectrogram - self.centre) / self.spread).unsqueeze(3)
