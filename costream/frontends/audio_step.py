"""Single hops of the audio backbone on preallocated buffers: only copies and matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from costream.frontends.mel_step import MelBuffers
from costream.nn.folding import Folded
from costream.nn.state import zeros

if TYPE_CHECKING:
    from costream.frontends.audio import AudioLayer, ContinualAudioNet


class FoldedAudio(Folded):
    """The folded layers of a ``ContinualAudioNet`` in evaluation, for single hops."""

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
        rooms = []
        for layer, held, matrix in zip(self.layers, past, self._matrices, strict=True):
            rooms.append(LayerBuffers(layer, matrix, held, frames))
            frames //= layer.convolution.stride[0]
        return HopBuffers(self, mel, rooms, features, counts)


class LayerBuffers:
    """Buffers of a layer for the hops of B streams: past frames, new frames and their patches.

    Past and new frames, and the zero padding of the bands, are one block of memory; a hop copies
    its patches from there (im2col) and multiplies them by the weights. With a few frames at a
    time, rearranging them would take as long as the product. ``matrix``: see ``_matrix``.
    """

    def __init__(self, layer: AudioLayer, matrix: Tensor, past: Tensor, frames: int) -> None:
        convolution, (streams, before, bands, width) = layer.convolution, past.shape
        (k_time, k_band), (over_time, over_bands) = convolution.kernel, convolution.stride
        pad = convolution.pads[1]
        block = zeros(streams, before + frames, bands + 2 * pad, width, like=past)
        inside = block[:, :, pad : pad + bands]
        self.past, self.new = inside[:, :before], inside[:, before:]
        self.past.copy_(past)
        self._newest = inside[:, frames:] if before else None  # the past frames of the next hop
        stream, frame, band, one = block.stride()
        images = (streams, frames // over_time, convolution.bands(bands))
        patch = (k_time, k_band * width)
        strides = (stream, over_time * frame, over_bands * band, frame, one)
        self._patches = block.as_strided((*images, *patch), strides)
        self._matrix = matrix
        self._rows = zeros(math.prod(images), len(matrix), like=past)
        self._rows[:, -1] = 1  # for the bias
        self._columns = self._rows[:, :-1].view(*images, *patch)
        self._out = zeros(len(self._rows), matrix.shape[1], like=past)
        self.images = self._out.view(*images, -1)
        self._around = self.new if layer.residual else None

    def step(self, out: Tensor) -> None:
        """Write the layer's output for the frames in ``new`` into ``out`` [B, T', F', O]."""
        self._columns.copy_(self._patches)
        torch.mm(self._rows, self._matrix, out=self._out)
        if self._around is not None:
            self.images.add_(self._around)
        if self._newest is not None:
            self.past.copy_(self._newest)
        torch.clamp_min(self.images, 0, out=out)


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
        self._features, self._newest = features, self.rows[:, 1:]
        self._both = features, out[:, :, 0]
        # NumPy arithmetic on these takes a tenth of the time of tensors.
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
        torch.cat(self._both, 1, out=self.rows)
        torch.mean(self.rows, 1, out=self.mean)
        self._features.copy_(self._newest)
        self._hops += 1
        self._samples += self._size
        return spectrogram, min(self._hops.tolist())


def _matrix(weight: Tensor, bias: Tensor) -> Tensor:
    """Return weight and bias as the matrix [K_time K_bands I + 1, O] that multiplies patches.

    The bias is the last row, for a column of ones, so it needs no addition of its own.
    """
    rows = weight.permute(0, 2, 3, 1).flatten(1)
    return torch.cat([rows, bias[:, None]], 1).t().contiguous()
