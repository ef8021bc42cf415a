"""Microphones of this machine, through PortAudio."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from costream.core.errors import SourceError

WHERE = "microphone"


class AbsentDeviceError(SourceError):
    """The input device does not exist or cannot be used now."""


@dataclass(frozen=True)
class InputDevice:
    """An input device of PortAudio."""

    index: int  # PortAudio's, counting outputs too; changes when devices come and go
    name: str
    api: str  # ALSA, Core Audio, Windows WASAPI, ...
    channels: int  # at most; a sound server reports 32 or more and mixes
    rate_hz: int  # native
    default: bool


def portaudio() -> Any:
    """Return the module ``sounddevice``; without it raise SourceError with installation help.

    Importing it enumerates devices, which takes as long as the sound server takes to answer.
    """
    try:
        return importlib.import_module("sounddevice")
    except ModuleNotFoundError as error:
        raise SourceError(
            f"the package {error.name} is missing", where=WHERE, hint="pip install 'costream[mic]'"
        ) from error
    except OSError as error:
        raise SourceError(
            f"the PortAudio library cannot be used ({error})",
            where=WHERE,
            hint="on Debian and Ubuntu: apt install libportaudio2",
        ) from error


def input_devices() -> list[InputDevice]:
    """Return the input devices found by PortAudio's last enumeration.

    Raises SourceError like ``portaudio``, or if PortAudio fails.
    """
    sd = portaudio()
    try:
        apis = [api["name"] for api in sd.query_hostapis()]
        devices = list(sd.query_devices())
    except sd.PortAudioError as error:
        what = f"PortAudio cannot list the devices ({error})"
        raise AbsentDeviceError(what, where=WHERE) from error
    default = sd.default.device[0]
    return [
        InputDevice(
            index=found["index"],
            name=found["name"],
            api=apis[found["hostapi"]],
            channels=found["max_input_channels"],
            rate_hz=round(found["default_samplerate"]),
            default=found["index"] == default,
        )
        for found in devices
        if found["max_input_channels"] > 0
    ]


def rescan_devices() -> None:
    """Make PortAudio enumerate devices again; closes every stream of the process.

    Raises SourceError if PortAudio fails.
    """
    sd = portaudio()
    with contextlib.suppress(sd.PortAudioError):  # the last start may have failed
        sd._terminate()
    try:
        sd._initialize()
    except sd.PortAudioError as error:
        raise SourceError(f"PortAudio cannot be started ({error})", where=WHERE) from error


def choose_device(devices: Sequence[InputDevice], wanted: str) -> InputDevice:
    """Return the device with this index, name, or part of a name; "" is the default one.

    Of devices with the same name (Windows lists each once per interface) the first is returned.
    Raises AbsentDeviceError if none matches, SourceError if several do.
    """
    if not devices:
        raise AbsentDeviceError(
            "there is no input device",
            where=WHERE,
            hint="plug one in, or start the sound server; 'costream doctor' lists what is found",
        )
    if not wanted:
        fitting = [device for device in devices if device.default]
    elif wanted.isdecimal():
        fitting = [device for device in devices if device.index == int(wanted)]
    else:
        fitting = [device for device in devices if device.name == wanted] or [
            device for device in devices if wanted.casefold() in device.name.casefold()
        ]
    if len({device.name for device in fitting}) == 1:
        return fitting[0]
    hint = "give its name or number: mic:NAME|INDEX"
    if fitting:
        raise SourceError(f"{wanted!r} is ambiguous: {_listed(fitting)}", where=WHERE, hint=hint)
    if wanted:
        what = f"there is no input device {wanted!r}, only {_listed(devices)}"
    else:
        what = f"there is no default input device, only {_listed(devices)}"
    raise AbsentDeviceError(what, where=WHERE, hint=hint)


def _listed(devices: Sequence[InputDevice]) -> str:
    return ", ".join(f"{device.index} {device.name!r}" for device in devices)


@contextlib.contextmanager
def silence_portaudio(uris: Iterable[str]) -> Iterator[None]:
    """Keep PortAudio and ALSA from printing while the block runs, if a microphone is among sources.

    For programs, which decide about their own process: when a device is lost or cannot be opened,
    these libraries print to the C library's ``stderr``, into the live view, and have no option
    against it. Python's stderr and descriptor 2 are unchanged. Does nothing without glibc.
    """
    found = _c_stderr() if any(uri.lower().partition(":")[0] == "mic" for uri in uris) else None
    if found is None:
        yield
        return
    stderr, original, nowhere = found
    stderr.value = nowhere
    try:
        yield
    finally:
        stderr.value = original


@functools.cache
def _c_stderr() -> tuple[ctypes.c_void_p, int | None, int] | None:
    """Return the C library's variable ``stderr``, its value, and a stream to /dev/null.

    That stream is never closed: another thread may be about to print.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.fopen.restype = ctypes.c_void_p
    stderr, nowhere = ctypes.c_void_p.in_dll(libc, "stderr"), libc.fopen(b"/dev/null", b"w")
    return (stderr, stderr.value, nowhere) if nowhere else None
