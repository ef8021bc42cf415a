"""VGGish: features of the last second of audio, from a network trained on YouTube.

Hershey et al., CNN Architectures for Large-Scale Audio Classification (ICASSP 2017). The
arithmetic, from the spectrogram on, is that of the published weights.

The PCA of a checkpoint (torchvggish) may be in it (``pproc.*``), in its companion file, or in the
.npz of the original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from costream.core.errors import ModelError
from costream.models.audio.mel import LogMel, LogMelState, SpectrumFrontend, SpectrumState
from costream.models.frontend import frontend
from costream.nn.state import State, zeros
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import frontend_importer
from costream.weights_io.tensor_rules import ImportedFrontend, TensorRule, apply, linear, shape_of

FRAMES, BANDS = 96, 64  # of the network's input
OUTPUTS = ("relu", "linear", "relu-pca", "linear-pca", "penultimate")
_OFFSET = 0.01
_POOLED = (FRAMES // 16, BANDS // 16)


@dataclass
class VGGishState(SpectrumState, State):
    """State of the frontend for each stream."""

    mel: LogMelState
    frames: Tensor  # [B, 96 - hop_frames, 64], the newest last
    hops: Tensor  # int64 [B], processed so far


@frontend("vggish", order=10)
class VGGish(SpectrumFrontend, nn.Module):
    """Audio frontend: one token per hop, the features of the newest 96 frames of 10 ms.

    The network computes all of the window at each hop, so several hops should be passed at once.
    Before the first sample there is silence: log(0.01) in every band.

    Args:
        output: "relu", the 128 features after a ReLU as in the PyTorch port; "linear",
            before it as in the original; "relu-pca" and "linear-pca", the same after the published
            post-processing, integers from 0 to 255; "penultimate", the 4096 values before.
        hop_frames: frames of 10 ms from one token to the next, up to 96.
        widths: of the six convolutions. hidden, width: of the fully connected layers.
    """

    sample_rate_hz = 16_000

    def __init__(
        self,
        output: str = "relu",
        hop_frames: int = 25,
        widths: Sequence[int] = (64, 128, 256, 256, 512, 512),
        hidden: int = 4096,
        width: int = 128,
    ) -> None:
        super().__init__()
        if output not in OUTPUTS:
            raise ValueError(f"output {output!r} is not one of {', '.join(OUTPUTS)}")
        if not 1 <= hop_frames <= FRAMES or len(widths) != 6:
            raise ValueError(
                f"hop_frames {hop_frames} not in 1 to {FRAMES}, or not six widths: {len(widths)}"
            )
        self.output, self.hop_frames = output, hop_frames
        # Two hops of silence first, so that each block completes the same number of frames.
        self.mel = LogMel(BANDS, 400, 160, 512, lead=320, power=1, offset=_OFFSET)
        self.mel.register_buffer("matrix", mel_matrix().float(), persistent=False)
        self.block = hop_frames * self.mel.hop
        self.features = _convolutions(widths)
        flat = _POOLED[0] * _POOLED[1] * widths[-1]
        layers: list[nn.Module] = [nn.Linear(flat, hidden), nn.ReLU(inplace=True)]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True)]
        if output != "penultimate":
            layers.append(nn.Linear(hidden, width))
        if output.startswith("relu"):
            layers.append(nn.ReLU(inplace=True))
        self.embeddings = nn.Sequential(*layers)
        self.token_width = hidden if output == "penultimate" else width
        self.pca = _Pca(width) if output.endswith("pca") else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of T blocks [B, T, block], or of samples [B, T * block]."""
        spectrogram = self.mel(x.flatten(1))
        before = (len(x), FRAMES - self.hop_frames, BANDS)
        silence = spectrogram.new_full(before, math.log(_OFFSET))
        return self._tokens(torch.cat([silence, spectrogram], 1))

    def embed(self, examples: Tensor) -> Tensor:
        """Return the features [N, D] of log-mel examples [N, 96, 64]."""
        maps: Tensor = self.features(examples[:, None])
        features: Tensor = self.embeddings(maps.permute(0, 2, 3, 1).flatten(1))
        return features if self.pca is None else cast(Tensor, self.pca(features))

    def init_state(self, batch_size: int = 1) -> VGGishState:
        """Return the initial state of a batch of streams."""
        frames = zeros(batch_size, FRAMES - self.hop_frames, BANDS, like=self.mel.matrix)
        return VGGishState(self.mel.init_state(batch_size), frames, zeros(batch_size))

    def forward_steps(self, x: Tensor, state: VGGishState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens [B, T, D]."""
        spectrogram = self.mel.forward_steps(x.flatten(1), state.mel)
        state.newest = spectrogram
        rows = torch.cat([self._past(state), spectrogram], 1)
        state.frames.copy_(rows[:, rows.shape[1] - state.frames.shape[1] :].detach())
        state.hops += x.shape[1]
        return self._tokens(rows)

    def newest_spectrum(self, state: VGGishState) -> Tensor:
        """Return the frames of the last call, [B, frames, 64]: ln power, 2 ln magnitude."""
        return 2 * super().newest_spectrum(state)

    def count_macs(self, hops: int = 1) -> int:
        """Return the multiply-accumulates of ``hops`` hops of one stream."""
        total, places = 0, FRAMES * BANDS
        for layer in self.features:
            if isinstance(layer, nn.MaxPool2d):
                places //= 4
            elif isinstance(layer, nn.Conv2d):
                total += places * layer.weight.numel()
        total += sum(m.weight.numel() for m in self.embeddings if isinstance(m, nn.Linear))
        total += 0 if self.pca is None else self.pca.vectors.numel()
        return hops * (total + self.mel.count_macs(self.hop_frames))

    def _past(self, state: VGGishState) -> Tensor:
        """Return the past frames, with silence where there were none."""
        count = state.frames.shape[1]
        frames = state.hops * self.hop_frames
        if int(frames.min()) >= count:
            return state.frames
        empty = torch.arange(count) < count - frames[:, None]
        return state.frames.masked_fill(
            empty[:, :, None].to(state.frames.device), math.log(_OFFSET)
        )

    def _tokens(self, rows: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of the windows in rows [B, 96 + (T - 1) hop_frames, 64]."""
        windows = rows.unfold(1, FRAMES, self.hop_frames).transpose(2, 3)
        return torch.unflatten(self.embed(windows.flatten(0, 1)), 0, windows.shape[:2])


class _Pca(nn.Module):
    """The published post-processing: PCA, clipped to -2 to 2, quantised to 0 to 255."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vectors: Tensor
        self.means: Tensor
        self.register_buffer("vectors", torch.eye(width))
        self.register_buffer("means", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        turned = (x - self.means) @ self.vectors.t()
        return turned.clamp(-2.0, 2.0).add(2.0).mul(255 / 4).round()


def mel_matrix() -> Tensor:
    """Return VGGish's triangular filters, float64 [257, 64].

    Their edges are equally spaced in mel = 1127 ln(1 + f / 700) from 125 to 7500 Hz, and their
    slopes are linear in mel, not in Hz as librosa's; the bin of 0 Hz is left out.
    """
    lowest, highest = (1127 * math.log1p(hz / 700) for hz in (125, 7500))
    edges = torch.linspace(lowest, highest, BANDS + 2, dtype=torch.float64)
    hz = torch.linspace(0, VGGish.sample_rate_hz / 2, 257, dtype=torch.float64)
    bins = 1127 * torch.log1p(hz / 700)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    matrix = torch.minimum(rising, falling).clamp(min=0)
    matrix[0] = 0
    return matrix


def _convolutions(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 1
    for k, width in enumerate(widths):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
        if k in (0, 1, 3, 5):
            layers.append(nn.MaxPool2d(2))
        channels = width
    # Convolutions over interleaved channels take 0.6 of the time on a CPU, and the layers after
    # them need channels last.
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


FRAME_RATE_HZ = 100
_MOST_FRAMES = 96  # of a window
_CONVOLUTIONS = (0, 3, 6, 8, 11, 13)
_POST = "pproc."
_VECTORS, _MEANS = "pca_eigen_vectors", "pca_means"
_PLACES = 24  # positions in the last feature maps


def detect(tensors: Mapping[str, object]) -> bool:
    """Return whether the names are those of VGGish, of its PCA, or of both."""
    names = {name.removeprefix(_POST) for name in tensors}
    return _VECTORS in names or {"features.0.weight", "embeddings.0.weight"} <= names


@frontend_importer("vggish", title="VGGish", detect=detect, keys=("embedding",))
def read_frontend(
    parts: Sequence[ForeignCheckpoint], settings: ImportSettings, rate_hz: float
) -> ImportedFrontend:
    """Return the frontend of these files for a network with ``rate_hz`` steps per second.

    Raises ModelError when they do not form one VGGish, and when a step is not a whole number of
    its frames of 10 ms.
    """
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.tensors.items():
            name = name.removeprefix(_POST)
            if name in tensors:
                raise ModelError(f"tensor given twice: {name}")
            tensors[name] = value
    output = settings.get("embedding") or ("relu-pca" if _VECTORS in tensors else "relu")
    hop = FRAME_RATE_HZ / rate_hz
    if hop != int(hop) or hop > _MOST_FRAMES:
        raise ModelError(
            f"rate_hz={rate_hz:g}: VGGish has {FRAME_RATE_HZ} frames per second, and a step needs a"
            f" whole number of them, at most {_MOST_FRAMES}",
            hint="CoTrans has 4 steps per second",
        )
    if output.endswith("pca") and _VECTORS not in tensors:
        raise ModelError(f"embedding={output} needs the PCA", hint="also give its file")
    return _frontend(tensors, output, int(hop))


def _frontend(tensors: dict[str, Tensor], output: str, hop_frames: int) -> ImportedFrontend:
    rules: list[TensorRule] = []
    widths, channels = [], 1
    for k in _CONVOLUTIONS:
        width = shape_of(tensors, f"features.{k}.weight", 4)[0]
        name = f"features.{k}"
        rules.append(TensorRule(f"{name}.weight", (f"{name}.weight",), (width, channels, 3, 3)))
        rules.append(TensorRule(f"{name}.bias", (f"{name}.bias",), (width,)))
        widths.append(width)
        channels = width
    hidden = shape_of(tensors, "embeddings.0.weight", 2)[0]
    width = shape_of(tensors, "embeddings.4.weight", 2)[0]
    rules += linear("embeddings.0", "embeddings.0", hidden, _PLACES * channels)
    rules += linear("embeddings.2", "embeddings.2", hidden, hidden)
    unused = [_VECTORS, _MEANS]
    if output == "penultimate":
        unused += ["embeddings.4.weight", "embeddings.4.bias"]
    else:
        rules += linear("embeddings.4", "embeddings.4", width, hidden)
    if output.endswith("pca"):
        rules.append(TensorRule("pca.vectors", (_VECTORS,), (width, width)))
        if _MEANS in tensors:
            tensors[_MEANS] = tensors[_MEANS].flatten()  # a column in torchvggish
        rules.append(TensorRule("pca.means", (_MEANS,), (width,)))
    arguments = {
        "output": output,
        "hop_frames": hop_frames,
        "widths": widths,
        "hidden": hidden,
        "width": width,
    }
    token_width = hidden if output == "penultimate" else width
    renamed = apply(rules, tensors, unused)
    return ImportedFrontend("vggish", arguments, renamed, token_width, "VGGish of torchvggish")
