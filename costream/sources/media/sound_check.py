"""Detection of wrongly recorded sound: inverted channels, an offset, another scale."""

from __future__ import annotations

import av
import numpy as np
import numpy.typing as npt

LOUD = 20  # times full scale; sound that often exceeds it has another scale
_OFTEN = 0.001  # part of the samples; fewer are damage
SCALE = "if they are in the scale of integers: ffmpeg -i IN -af volume=1/32768 OUT.wav"
_EVERY_S = 0.25  # one frame is analysed per this time
_TOGETHER_S = 10.0  # length of sound that is evaluated at once
_AUDIBLE = 1e-6  # power: -60 dB of full scale
_CANCELLED = 0.1  # part of the power of the mean of unrelated channels
_OFFSET = 0.02  # of full scale; smaller offsets are not removed
_SETTLED_S = 1.0  # of sound before the offset is estimated
_MOST = 1e6  # samples are clipped to this


class SoundCheck:
    """Analyses some frames of a sound before its channels are mixed.

    For example, the mean of a channel and its inverse is silence. ``take`` and ``finish`` return
    a line for each kind of fault, once.
    """

    def __init__(self, channel: int | None, rate_hz: int) -> None:
        """``channel``: the only one that is used, from 1; None: the mean of all.

        ``rate_hz``: of the mixed sound.
        """
        self._channel, self._rate_hz = channel, rate_hz
        self._offset = self._sum = 0.0
        self._summed = 0  # samples
        self._reported: set[str] = set()
        self._ahead_s = 0.0  # until the next frame is analysed
        self._begin()

    def _begin(self) -> None:
        self._analysed_s = self._peak = 0.0
        self._count = self._channels = self._loud = 0
        self._mixed = self._apart = 0.0  # sums over samples

    def take(self, frame: av.AudioFrame) -> list[str]:
        """Take the next frame, in any format."""
        length_s = frame.samples / frame.sample_rate
        self._analysed_s += length_s
        self._ahead_s -= length_s
        if self._ahead_s <= 0:
            self._ahead_s = _EVERY_S
            self._analyse(_samples(frame))
        return self.finish() if self._analysed_s >= _TOGETHER_S else []

    def finish(self) -> list[str]:
        """Evaluate the frames since the last evaluation; return a line for each new fault."""
        lines = {} if self._count == 0 else self._evaluate()
        self._begin()
        new = [line for kind, line in lines.items() if kind not in self._reported]
        self._reported |= lines.keys()
        return new

    def without_offset(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return mixed samples minus their mean over the last seconds, if that is large.

        An offset can dominate what a model computes.
        """
        self._sum += float(samples.sum(dtype=np.float64))
        self._summed += len(samples)
        if self._summed >= _SETTLED_S * self._rate_hz:
            self._offset = self._sum / self._summed
        if self._summed >= _TOGETHER_S * self._rate_hz:
            self._sum, self._summed = 0.0, 0
        return samples - np.float32(self._offset) if abs(self._offset) >= _OFFSET else samples

    def _analyse(self, samples: npt.NDArray[np.float64]) -> None:
        if self._channel is not None:
            samples = samples[self._channel - 1 : self._channel]
        self._channels, count = samples.shape
        self._count += count
        self._apart += count * float(samples.var(axis=1).mean())
        self._mixed += count * float(samples.mean(axis=0).var())
        self._peak = max(self._peak, float(np.abs(samples).max(initial=0.0)))
        self._loud += int((np.abs(samples) >= LOUD).any(axis=0).sum())

    def _evaluate(self) -> dict[str, str]:
        """Return a line for each kind of fault."""
        apart, offset, lines = self._apart / self._count, self._offset, {}
        mixed, channels = self._mixed / self._count, self._channels
        if channels > 1 and apart > _AUDIBLE and mixed < _CANCELLED * apart / channels:
            lines["channels"] = (
                "its channels cancel out in their mean, as if one were inverted: use one of them, "
                "--channel 1"
            )
        if self._loud > _OFTEN * self._count:
            lines["scale"] = f"samples of {self._peak:.0f} times full scale; {SCALE}"
        elif abs(offset) >= _OFFSET:
            lines["offset"] = (
                f"its samples have a constant offset of {offset:+.2f} of full scale, "
                "a fault of the device: removed"
            )
        return lines


def _samples(frame: av.AudioFrame) -> npt.NDArray[np.float64]:
    """Return the samples of a frame, float64 [channels, N], full scale 1."""
    values = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    samples = values.astype(np.float64)
    if values.dtype.kind == "u":
        return samples / 128 - 1
    if values.dtype.kind == "i":
        return samples / float(2 ** (8 * values.dtype.itemsize - 1))
    return np.clip(np.nan_to_num(samples, nan=0.0), -_MOST, _MOST)
