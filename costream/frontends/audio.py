"""Convolutional audio backbone that processes each spectrogram frame only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.frontends.audio_step import FoldedAudio, HopBuffers
from costream.frontends.mel import LogMel, LogMelState
from costream.frontends.mel_step import MelBuffers
from costream.nn.fast import linear
from costream.nn.folding import Foldable
from costream.nn.graph import normalise, scale_and_shift
from costream.nn.state import State, zeros
from costream.nn.time_frequency import TimeFrequencyConvolution

# Strides of each layer in frames and bands; (1, 1): a residual layer. A hop becomes one frame.
_STRIDES = ((2, 2), (1, 2), (1, 1), (2, 2), (1, 1), (2, 2), (1, 1))
_HOP_FRAMES = 16


@dataclass
class AudioState(State):
    """State of the audio backbone for each stream."""

    mel: LogMelState
    past: tuple[Tensor, ...]  # of each convolution, the past frames that it still needs
    features: Tensor  # [B, pool - 1, feature_width], of the last hops
    hops: Tensor  # int64 [B], processed so far

    def __post_init__(self) -> None:
        self.newest: Tensor | None = None  # spectrogram of the last steps, for display
        self.room: HopBuffers | None = None  # buffers, of which ``past`` is a view; for single hops


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


class ContinualAudioNet(Foldable[FoldedAudio]):
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

    takes = "audio"

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
        return self.forward_steps(x[:, None], state)[:, 0]

    def forward_steps(self, x: Tensor, state: AudioState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens [B, T, D]."""
        if x.shape[1] == 1 and x.is_cpu and not self.training and not torch.is_grad_enabled():
            return self._hop(x[:, 0], state)[:, None]
        heard = self.mel.forward_steps(x.flatten(1), state.mel)
        state.newest = heard
        rows = self._normalise(heard)
        for layer, past in zip(self.blocks, state.past, strict=True):
            rows = layer(rows, past)
        features = torch.cat([state.features, rows.squeeze(2)], 1)
        tokens = self._average(features, state.hops)
        state.features.copy_(features[:, features.shape[1] - self.pool + 1 :].detach())
        state.hops += x.shape[1]
        return tokens

    def _hop(self, x: Tensor, state: AudioState) -> Tensor:
        """Take one block [B, block] of every stream, return its token [B, D]."""
        room = self._room(state)
        state.newest, fewest = room.step(x)
        if fewest >= self.pool:
            return linear(self, "project", room.mean)
        return self._average(room.rows, state.hops - 1)[:, 0]

    def fold(self) -> FoldedAudio:
        """Return the folded layers, for single hops."""
        return FoldedAudio(self)

    def _room(self, state: AudioState) -> HopBuffers:
        """Return the buffers for the hops of these streams."""
        folded = self.folded()
        if state.room is None or state.room.folded is not folded:
            mel = MelBuffers(self.mel, state.mel.held, self.block)
            counts = state.hops, state.mel.samples
            state.room = folded.lay_out(mel, state.past, state.features, counts, _HOP_FRAMES)
            state.past, state.mel.held = state.room.past, mel.held
        return state.room

    def newest_spectrum(self, state: AudioState) -> Tensor:
        """Return the log-mel frames of the last call, [B, frames, bands]."""
        if state.newest is None:
            raise ValueError("no audio has been processed yet")
        return state.newest

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
        heard = hops[:, None] + torch.arange(1, count + 1)
        means = total / heard.clamp_(max=self.pool)[:, :, None].to(total)
        return linear(self, "project", means)

    def _normalise(self, spectrogram: Tensor) -> Tensor:
        return ((spectrogram - self.centre) / self.spread).unsqueeze(3)


def without_norms(net: ContinualAudioNet) -> ContinualAudioNet:
    """Return the same network with batch normalisation folded into the convolutions."""
    widths = [layer.convolution.out_width for layer in net.blocks]
    out = ContinualAudioNet(net.token_width, widths[:-1], widths[-1], net.pool, net.sample_rate_hz)
    state = {k: v for k, v in net.state_dict().items() if ".norm." not in k}
    for k, layer in enumerate(net.blocks):
        weight, bias = layer.folded()
        state |= {f"layers.{k}.convolution.weight": weight, f"layers.{k}.convolution.bias": bias}
    out.load_state_dict(state)
    return out.train(net.training)
