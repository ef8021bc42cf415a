"""Hardware decoding of video: the device of this machine, and whether a stream uses it."""

from __future__ import annotations

import logging
from functools import cache

import av
from av.codec import Codec
from av.codec.hwaccel import HWAccel, hwdevices_available
from av.video.stream import VideoStream

from costream.core.errors import SourceError, UsageError, display_name
from costream.sources.base import DecoderChoice

log = logging.getLogger("costream")

_IN_SOFTWARE: tuple[DecoderChoice, ...] = ("software", "fast")
_SOFTWARE = "leave out --decoder hardware, or use --decoder auto"


@cache
def hardware_device() -> str | None:
    """Return FFmpeg's name of the first device that decodes H.264, such as "cuda", or None."""
    codec = Codec("h264", "r")
    for name in hwdevices_available():
        try:
            HWAccel(name).create(codec)
        except (av.FFmpegError, OSError, NotImplementedError):  # no such device, or no driver
            continue
        return name
    return None


def check_decoder() -> None:
    """Raise UsageError if this machine has no device that decodes video."""
    if hardware_device() is None:
        devices = ", ".join(hwdevices_available()) or "none"
        raise UsageError(
            f"no device here decodes video (known to this FFmpeg: {devices})",
            where="--decoder hardware",
            hint=_SOFTWARE,
        )


def acceleration(choice: DecoderChoice) -> HWAccel | None:
    """Return the ``hwaccel`` argument of ``av.open``; None to decode in software."""
    name = None if choice in _IN_SOFTWARE else hardware_device()
    return None if name is None else HWAccel(name, allow_software_fallback=True)


def check_stream(stream: VideoStream, choice: DecoderChoice, uri: str) -> None:
    """Log once if "auto" decodes a stream of ``uri`` in software.

    Raises SourceError if hardware is asked for and does not decode it.
    """
    if choice in _IN_SOFTWARE or stream.codec_context.is_hwaccel:
        return
    device, codec = hardware_device(), stream.codec_context.name
    reason = f"{device} does not decode {codec}" if device else "no device here decodes video"
    if choice == "hardware":
        raise SourceError(reason, where=display_name(uri), hint=_SOFTWARE)
    _note(f"{display_name(uri)}: decoded in software ({reason})")


@cache
def _note(text: str) -> None:
    """Log a line once, however often a source is opened."""
    log.warning("%s", text)
