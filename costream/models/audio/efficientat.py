"""EfficientAT: 527 sounds of AudioSet, several at once, from windows of a few seconds.

Schmid, Koutini and Widmer, Efficient large-scale audio tagging via transformer-to-CNN knowledge
distillation (ICASSP 2023), https://github.com/fschmid56/EfficientAT: MobileNetV3 (Howard et al.,
2019) over log-mel frames of 10 ms, in widths of 0.1 to 4 (mn01 to mn40).

Checkpoints are the published ones of the widths with the usual strides and squeeze-excitation over
channels (mn01_as to mn40_as). Their batch norms (eps 0.001) are folded into the convolutions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.records import AUDIO_TAGGING
from costream.models.audio.mel import LogMel, LogMelState, SpectrumFrontend, SpectrumState
from costream.models.audio.windows import SpectrogramWindows, SpectrogramWindowState
from costream.models.frontend import frontend
from costream.models.spec import register_model
from costream.nn.fused import HARD_SWISH, RELU, convolve
from costream.nn.state import State, zeros
from costream.weights_io.card import Timeline
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import importer
from costream.weights_io.tensor_rules import (
    COUNTER,
    ImportedNetwork,
    TensorRule,
    apply,
    fold_norm,
    linear,
    normed_convolution,
    shape_of,
)

SAMPLE_RATE_HZ = 32_000
BANDS = 128
_FFT, _WINDOW, _HOP = 1024, 800, 320  # samples
_TOP_HZ = 15_000
PREEMPHASIS, _OFFSET = 0.97, 1e-5
SHIFT, SCALE = 4.5, 5.0  # the input is (ln(power + offset) + shift) / scale
_SILENCE = (math.log(_OFFSET) + SHIFT) / SCALE
SHORTEST = 100  # frames; fewer are preceded by silence
PAPER = "https://arxiv.org/abs/2211.04772"
EPS = 0.001  # of the batch norms


class _Sizes(NamedTuple):
    """Sizes of a block at width 1."""

    kernel: int
    expanded: int  # channels
    out: int  # channels
    excited: bool  # by squeeze-excitation
    hard: bool  # hard swish; else ReLU
    stride: int


_STEM = 16  # channels at width 1
_HIDDEN = 1280  # of the classifier at width 1
_BLOCKS = (
    _Sizes(3, 16, 16, False, False, 1),
    _Sizes(3, 64, 24, False, False, 2),
    _Sizes(3, 72, 24, False, False, 1),
    _Sizes(5, 72, 40, True, False, 2),
    _Sizes(5, 120, 40, True, False, 1),
    _Sizes(5, 120, 40, True, False, 1),
    _Sizes(3, 240, 80, False, True, 2),
    _Sizes(3, 200, 80, False, True, 1),
    _Sizes(3, 184, 80, False, True, 1),
    _Sizes(3, 184, 80, False, True, 1),
    _Sizes(3, 480, 112, True, True, 1),
    _Sizes(3, 672, 112, True, True, 1),
    _Sizes(5, 672, 160, True, True, 2),
    _Sizes(5, 960, 160, True, True, 1),
    _Sizes(5, 960, 160, True, True, 1),
)


@dataclass
class EfficientAtMelState(SpectrumState, State):
    """State of the frontend for each stream."""

    mel: LogMelState
    last: Tensor  # [B, 1], the newest sample


@frontend("efficientat-mel", order=12)
class EfficientAtMel(SpectrumFrontend, nn.Module):
    """Audio frontend: a token is the newest ``hop_frames`` frames of 10 ms, [hop_frames, 128].

    Sound at 32 kHz, pre-emphasis 0.97, Hann windows of 25 ms, 128 bands of Kaldi's mel scale up
    to 15 kHz, ln(power + 1e-5). Frames end where blocks end, 2.5 ms earlier than in the published
    program, which centres them; before the sound there is silence, not its mirror image.

    Args:
        hop_frames: frames from one token to the next.
        sample_rate_hz: of the sound. At 16 kHz the bands above 8 kHz are silent, and pre-emphasis
            is a factor of the power of each frequency: frames are those of the same sound at
            32 kHz but for the edges of windows.

    Raises ValueError unless ``hop_frames`` is positive and the rate 32 or 16 kHz.
    """

    def __init__(self, hop_frames: int = 50, sample_rate_hz: int = SAMPLE_RATE_HZ) -> None:
        super().__init__()
        if hop_frames < 1:
            raise ValueError(f"hop_frames {hop_frames} is not positive")
        if sample_rate_hz not in (SAMPLE_RATE_HZ, SAMPLE_RATE_HZ // 2):
            raise ValueError(f"sample_rate_hz {sample_rate_hz} is not 32000 or 16000")
        self.hop_frames, self.sample_rate_hz = hop_frames, sample_rate_hz
        self.emphasises = sample_rate_hz == SAMPLE_RATE_HZ  # the samples, before the spectrogram
        every = SAMPLE_RATE_HZ // sample_rate_hz
        window, hop, fft = (size // every for size in (_WINDOW, _HOP, _FFT))
        self.mel = LogMel(BANDS, window, hop, fft, lead=window - hop, offset=_OFFSET)
        matrix = mel_matrix()
        if every > 1:  # half the samples have a quarter of the power
            matrix = (matrix * every**2 * _emphasis()[:, None])[: fft // 2 + 1]
        self.mel.register_buffer("matrix", matrix.float(), persistent=False)
        hann = torch.hann_window(window, periodic=False, dtype=torch.float64)
        self.mel.register_buffer("hann", hann.float(), persistent=False)
        self.block = hop_frames * hop

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, T, hop_frames, 128] of T blocks [B, T, block]."""
        return self.forward_steps(x, self.init_state(len(x)))

    def init_state(self, batch_size: int = 1) -> EfficientAtMelState:
        """Return the initial state of a batch of streams."""
        last = zeros(batch_size, 1, like=self.mel.matrix)
        return EfficientAtMelState(self.mel.init_state(batch_size), last)

    def forward_steps(self, x: Tensor, state: EfficientAtMelState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens."""
        samples = x.flatten(1)
        if self.emphasises:
            before = torch.cat([state.last, samples[:, :-1]], 1)
            state.last.copy_(samples[:, -1:])
            samples = samples - PREEMPHASIS * before
        state.newest = self.mel.forward_steps(samples, state.mel)
        frames = (state.newest + SHIFT) / SCALE
        return torch.unflatten(frames, 1, (-1, self.hop_frames))

    def count_macs(self, hops: int = 1) -> int:
        """Return the multiply-accumulates of ``hops`` hops of one stream."""
        return self.mel.count_macs(hops * self.hop_frames)


def mel_matrix() -> Tensor:
    """Return the bands of the mel scale, float64 [513, 128].

    Triangles between equidistant points of the scale 1127 ln(1 + f / 700 Hz), as Kaldi has them.
    """

    def scale(hz: Tensor) -> Tensor:
        return 1127 * torch.log1p(hz / 700)

    bins = torch.arange(_FFT // 2 + 1, dtype=torch.float64)
    top = scale(torch.tensor(_TOP_HZ, dtype=torch.float64))
    position = scale(bins * SAMPLE_RATE_HZ / _FFT)[:, None] / (top / (BANDS + 1))
    bands = torch.arange(BANDS)
    return torch.minimum(position - bands, bands + 2 - position).clamp(min=0)


def _emphasis() -> Tensor:
    """Return the factor of pre-emphasis for the power of each frequency, float64 [513]."""
    angle = 2 * math.pi * torch.arange(_FFT // 2 + 1, dtype=torch.float64) / _FFT
    return 1 + PREEMPHASIS**2 - 2 * PREEMPHASIS * angle.cos()


@register_model(
    "efficientat",
    order=30,
    bench="costream.bench.published:published_steps_table",
    arguments={"num_classes": 527},
    task=AUDIO_TAGGING,
    rate_hz=2.0,
    whole=True,
    frontend="efficientat-mel",
)
class EfficientAt(SpectrogramWindows):
    """MobileNetV3 over the newest frames, with an independent score of each class.

    Every hop computes its window, as published: squeeze-excitation averages each layer over all of
    it. At the beginning of a stream the window has the frames that there are, so that the step at
    the end of a short recording is the published network's answer to it; silence precedes fewer
    than 100 frames.

    Args:
        num_classes: K.
        width: multiplies all channels; they are rounded to multiples of 8.
        hop_frames: frames of a token.
        window_frames: most frames of a window, at least 100.

    Raises ValueError for other numbers.
    """

    def __init__(
        self,
        num_classes: int,
        width: float = 0.4,
        hop_frames: int = 50,
        window_frames: int = 200,
    ) -> None:
        super().__init__(num_classes, hop_frames, window_frames, BANDS, _SILENCE, SHORTEST)
        self.width = width
        channels = _rounded(_STEM * width)
        self.stem = nn.Conv2d(1, channels, 3, 2, 1)
        blocks = []
        for sizes in _BLOCKS:
            expanded, out = _rounded(sizes.expanded * width), _rounded(sizes.out * width)
            blocks.append(_Block(channels, sizes._replace(expanded=expanded, out=out)))
            channels = out
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Conv2d(channels, 6 * channels, 1)
        self.hidden = nn.Linear(6 * channels, _rounded(_HIDDEN * width))
        self.classifier = nn.Linear(self.hidden.out_features, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        # Interleaved channels suit depthwise convolutions on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, frames: Tensor) -> Tensor:
        """Return the features [N, E] of windows [N, T, 128] of any T, the means over their maps."""
        x = convolve(self.stem, frames[:, None], HARD_SWISH)
        for block in self.blocks:
            x = block(x)
        return convolve(self.last, x, HARD_SWISH).mean((2, 3))

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits [N, K] of features [N, E]."""
        return cast(Tensor, self.classifier(F.hardswish(self.hidden(features))))

    def forward(self, frames: Tensor) -> Tensor:
        """Return the logits [N, K] of windows [N, T, 128] of any T."""
        return self.classify(self.features(frames))

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream: a full window."""
        return self._feature_macs() + self.hidden.weight.numel() + self.classifier.weight.numel()

    dense_macs = property(count_macs)

    def as_frontend(self) -> tuple[str, EfficientAtFeatures]:
        """Return the name of a frontend for other networks, and it with these weights."""
        arguments = (self.width, self.hop_frames, self.window_frames)
        front, tensors = EfficientAtFeatures(*arguments), self.state_dict()
        front.trunk.load_state_dict({name: tensors[name] for name in front.trunk.state_dict()})
        return "efficientat", front

    def _feature_macs(self) -> int:
        size = (self.window_frames, BANDS)
        total, size = _convolution_macs(self.stem, size)
        for block in self.blocks:
            macs, size = cast(_Block, block).count_macs(size)
            total += macs
        return total + _convolution_macs(self.last, size)[0]


class EfficientAtTrunk(EfficientAt):
    """The network without its classifier: features [N, E] in place of logits."""

    def __init__(self, width: float, hop_frames: int, window_frames: int) -> None:
        super().__init__(1, width, hop_frames, window_frames)
        self.num_classes = self.last.out_channels
        del self.hidden, self.classifier

    def forward(self, frames: Tensor) -> Tensor:
        """Return the features [N, E] of windows [N, T, 128] of any T."""
        return self.features(frames)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream: a full window."""
        return self._feature_macs()


@dataclass
class EfficientAtState(State):
    """State of spectrogram and network for each stream."""

    mel: EfficientAtMelState
    windows: SpectrogramWindowState


@frontend("efficientat", order=15)
class EfficientAtFeatures(nn.Module):
    """Audio frontend: the features of ``EfficientAt`` for the newest window, every hop.

    Args:
        width, hop_frames, window_frames: see ``EfficientAt``.
        sample_rate_hz: see ``EfficientAtMel``.
    """

    takes = "audio"

    def __init__(
        self,
        width: float = 0.4,
        hop_frames: int = 50,
        window_frames: int = 200,
        sample_rate_hz: int = SAMPLE_RATE_HZ,
    ) -> None:
        super().__init__()
        self.arguments = {
            "width": width,
            "hop_frames": hop_frames,
            "window_frames": window_frames,
            "sample_rate_hz": sample_rate_hz,
        }
        self.sample_rate_hz = sample_rate_hz
        self.mel = EfficientAtMel(hop_frames, sample_rate_hz)
        self.trunk = EfficientAtTrunk(width, hop_frames, window_frames)
        self.block, self.token_width = self.mel.block, self.trunk.num_classes

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, T, E] of T blocks [B, T, block]."""
        return self.forward_steps(x, self.init_state(len(x)))

    def init_state(self, batch_size: int = 1) -> EfficientAtState:
        """Return the initial state of a batch of streams."""
        return EfficientAtState(self.mel.init_state(batch_size), self.trunk.init_state(batch_size))

    def forward_step(self, x: Tensor, state: EfficientAtState) -> Tensor:
        """Take a block [B, block] of every stream, return tokens [B, E]."""
        frames = self.mel.forward_steps(x[:, None], state.mel)
        return self.trunk.forward_step(frames[:, 0], state.windows).logits

    def forward_steps(self, x: Tensor, state: EfficientAtState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return tokens [B, T, E]."""
        frames = self.mel.forward_steps(x, state.mel)
        return self.trunk.forward_steps(frames, state.windows).logits

    def newest_spectrum(self, state: EfficientAtState) -> Tensor:
        """Return the newest frames of the spectrogram, ln of power, [B, frames, bands]."""
        return self.mel.newest_spectrum(state.mel)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""
        return self.mel.count_macs() + self.trunk.count_macs()


def _rounded(channels: float) -> int:
    """Return the multiple of 8 next to ``channels``, at least 8 and nine tenths of them."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _convolution_macs(layer: nn.Conv2d, size: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Return the multiply-accumulates of a convolution on a map of ``size``, and its new size."""
    after = (-(-size[0] // layer.stride[0]), -(-size[1] // layer.stride[1]))
    return after[0] * after[1] * layer.weight.numel(), after


class _Block(nn.Module):
    """Inverted residual of MobileNetV3: 1x1, depthwise, squeeze-excitation, 1x1."""

    def __init__(self, channels: int, sizes: _Sizes) -> None:
        super().__init__()
        kernel, expanded, out, excited, self.hard, stride = sizes
        self.residual = stride == 1 and channels == out
        self.expand = nn.Conv2d(channels, expanded, 1) if expanded != channels else None
        padding = kernel // 2
        self.depthwise = nn.Conv2d(expanded, expanded, kernel, stride, padding, groups=expanded)
        squeezed = _rounded(expanded // 4)
        self.squeeze = nn.Linear(expanded, squeezed) if excited else None
        self.excite = nn.Linear(squeezed, expanded) if excited else None
        self.project = nn.Conv2d(expanded, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, O, T', F'] for maps [N, I, T, F]."""
        kind = HARD_SWISH if self.hard else RELU
        y = x if self.expand is None else convolve(self.expand, x, kind)
        y = convolve(self.depthwise, y, kind)
        if self.squeeze is not None and self.excite is not None:
            gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
            y = y * gate[:, :, None, None]
        y = convolve(self.project, y)
        return y.add_(x) if self.residual else y

    def count_macs(self, size: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return the multiply-accumulates on a map of ``size``, and the size of the output."""
        total = 0
        for layer in (self.expand, self.depthwise, self.project):
            if layer is not None:
                macs, size = _convolution_macs(layer, size)
                total += macs
        if self.squeeze is not None:
            total += 2 * self.squeeze.weight.numel()
        return total, size


TIMELINE = Timeline(threshold=0.3, min_length_s=0.4, min_gap_s=0.5)
_FIRST = "features.0.0.weight"
_BLOCK = re.compile(r"features\.\d+\.block\.")


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of EfficientAT's MobileNets."""
    return {_FIRST, "classifier.5.weight"} <= tensors.keys() and any(map(_BLOCK.match, tensors))


@importer(
    "efficientat",
    summary="EfficientAT, the published mn01_as to mn40_as",
    detect=detect,
    keys=("num_classes",),
    order=22,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for tensors that are missing, left over or misshapen."""
    tensors = {name: _transposed(value) for name, value in foreign.tensors.items()}
    classes = settings.check("num_classes", shape_of(tensors, "classifier.5.weight", 2)[0])
    width = shape_of(tensors, "classifier.2.weight", 2)[0] / _HIDDEN
    with torch.device("meta"):  # only shapes are needed
        network = EfficientAt(classes, width)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    convolutions, dense = _published_names(network)
    rules: list[TensorRule] = []
    for ours, theirs in convolutions.items():
        shape = shapes[f"{ours}.weight"]
        rules += normed_convolution(ours, f"{theirs}.0", f"{theirs}.1", shape)
    for ours, theirs in dense.items():
        rules += linear(ours, theirs, *shapes[f"{ours}.weight"])
    named = apply(rules, tensors, [name for name in tensors if name.endswith(COUNTER)])
    folded = {k: v for ours in convolutions for k, v in fold_norm(ours, named, EPS).items()}
    return ImportedNetwork(
        "efficientat",
        {"num_classes": classes, "width": width},
        folded | {k: named[k] for ours in dense for k in (f"{ours}.weight", f"{ours}.bias")},
        classes,
        paper=PAPER,
        task=AUDIO_TAGGING,
        frontend="efficientat-mel",
        frontend_arguments={"hop_frames": network.hop_frames},
        rate_hz=100 / network.hop_frames,
        delay_steps=network.delay_steps,
        timeline=TIMELINE,
    )


def _published_names(network: EfficientAt) -> tuple[dict[str, str], dict[str, str]]:
    """Return the published names of the convolutions with norms, and of the linear layers."""
    convolutions, dense = {"stem": "features.0"}, {}
    for k, block in enumerate(network.blocks):
        place = 0
        for name in ("expand", "depthwise", "squeeze", "project"):
            if getattr(block, name) is None:
                continue
            theirs = f"features.{k + 1}.block.{place}"
            if name == "squeeze":
                dense[f"blocks.{k}.squeeze"] = f"{theirs}.conc_se_layers.0.fc1"
                dense[f"blocks.{k}.excite"] = f"{theirs}.conc_se_layers.0.fc2"
            else:
                convolutions[f"blocks.{k}.{name}"] = theirs
            place += 1
    convolutions["last"] = f"features.{len(network.blocks) + 1}"
    return convolutions, dense | {"hidden": "classifier.2", "classifier": "classifier.5"}


def _transposed(value: Tensor) -> Tensor:
    """Return a kernel over bands and frames as one over frames and bands."""
    return value.transpose(2, 3).contiguous() if value.dim() == 4 else value
