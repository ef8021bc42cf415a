"""Downmixing and resampling of decoded sound with FFmpeg's filters."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import cast

import av
import numpy as np
import numpy.typing as npt


class Mixer:
    """Mixes frames of one format down to mono float32 and resamples them.

    Mono is the mean of all channels: it never clips and does not depend on the layout. (FFmpeg's
    rule weights the channels by layout and omits the low-frequency one.) Frames are
    queued until ``take``, because filters cost much less per frame when they run over many.
    """

    def __init__(
        self,
        first: av.AudioFrame,
        rate_hz: int,
        *,
        channel: int | None = None,
        skip: int = 0,
        together: int | None = None,
    ) -> None:
        """``first`` defines the format; it is not pushed.

        ``channel``: from 1; None: the mean. ``skip``: source samples to drop at the beginning.
        ``together``: samples per array from ``take``, except the last; None: any number. Raises
        av.FFmpegError if FFmpeg cannot mix the format.
        """
        self.format = sound_format(first)
        count = first.layout.nb_channels
        chosen = range(count) if channel is None else (channel - 1,)
        mixed = "+".join(f"{1 / len(chosen)!r}*c{k}" for k in chosen)
        filters = {
            "atrim": f"start_sample={skip}" if skip else "",
            "aformat": "sample_fmts=fltp",  # before mixing, to avoid rounding
            "pan": f"mono|c0={mixed}" if count > 1 else "",
            "aresample": str(rate_hz) if rate_hz != first.sample_rate else "",
            "asetnsamples": f"n={together}:p=0" if together else "",
        }
        self._graph = av.filter.Graph()
        last = self._entry = self._graph.add_abuffer(
            sample_rate=first.sample_rate,
            format=first.format.name,
            layout=first.layout.name,
            time_base=Fraction(1, first.sample_rate),
        )
        for name, arguments in filters.items():
            if arguments:
                last.link_to(added := self._graph.add(name, arguments))
                last = added
        self._exit = self._graph.add("abuffersink")
        last.link_to(self._exit)
        self._graph.configure()

    def push(self, frame: av.AudioFrame) -> None:
        """Take a frame in the format of the first one."""
        self._entry.push(frame)

    def take(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the samples [N] that are ready."""
        while True:
            try:
                out = cast(av.AudioFrame, self._exit.pull())
            except (av.BlockingIOError, av.EOFError):
                return
            yield out.to_ndarray()[0]

    def finish(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yield all remaining samples. The mixer cannot be used afterwards."""
        self._entry.push(None)
        yield from self.take()


def sound_format(frame: av.AudioFrame) -> tuple[int, str, str]:
    """Return the format a mixer requires to stay constant: rate, sample format, layout."""
    return frame.sample_rate, frame.format.name, frame.layout.name


def silence(like: av.AudioFrame, samples: int) -> av.AudioFrame:
    """Return a frame of silence in the format of another one."""
    frame = av.AudioFrame(like.format.name, like.layout.name, samples)
    frame.sample_rate = like.sample_rate
    middle = b"\x80" if like.format.name.startswith("u8") else b"\0"
    for plane in frame.planes:
        plane.update(middle * plane.buffer_size)
    return frame
