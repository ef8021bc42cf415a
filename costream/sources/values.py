"""Conversion of single values to items: frames, audio, skeletons, feature rows, lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Protocol

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

from costream.core.errors import UsageError
from costream.core.formatting import listed
from costream.core.layouts import LAYOUTS, Layout, find_layout
from costream.core.records import (
    Fault,
    FeatureRow,
    Item,
    SourceInfo,
    SourceKind,
    TextLine,
    VideoFrame,
)
from costream.sources.array_values import WHERE, Values, shape_error
from costream.sources.base import SourceOptions
from costream.sources.media.lazy_image import LazyImage
from costream.sources.skeletons.missing_joints import Placeholders
from costream.sources.skeletons.person import make_person
from costream.sources.skeletons.person_slots import Slots
from costream.sources.skeletons.skeleton_recording import PersonFrame
from costream.sources.skeletons.upright import UprightRemark
from costream.sources.sound_values import AudioSamples, NotCopied

_BODY_AXES = (2, 3)
_MOST_PERSONS = 16  # an array of floats with more rows is a picture


class ItemConverter(Protocol):
    """Converts the values of one stream, one after the other, to items of a source."""

    info: SourceInfo
    taken: int  # number of values, or audio blocks, so far
    rest: npt.NDArray[np.float32] | None  # audio samples [channels, N] after the last block

    @property
    def slots(self) -> Slots | None:
        """Assignment of persons to slots; None unless the values are skeletons."""

    @property
    def rest_s(self) -> Fraction | float | None:
        """Time of the next value or of the first sample of ``rest``; None: when it arrives."""

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        """Yield the items that a value completes; ``time_s`` None: computed from number and rate.

        Raises UsageError for a value of another shape or type.
        """

    def finish(self) -> Iterator[Item]:
        """Yield the remaining items."""

    def go_on(self, taken: int, time_s: float) -> None:
        """Continue numbers and times of an earlier stream, whose newest step was at ``time_s``."""


def make_converter(
    first: Values,
    options: SourceOptions,
    *,
    rate_hz: float | None,
    name: str,
    live: bool,
    size: int | None = None,
) -> ItemConverter:
    """Return the converter for a stream whose first value is ``first``.

    Audio if ``options.sound`` is set, text if it is a string; else feature rows [C], frames
    [H, W, 3], or skeletons [V, C] or [M, V, C] of floats. ``rate_hz``: values per second, or
    samples per second of audio; None: a value has the time of its arrival, a line its number.
    ``size``: the number of values, if known. Raises UsageError if a rate is missing or the
    shape of the first value is unknown.
    """
    check_rate(rate_hz)
    if first.dtype.kind == "U" and rate_hz is None and not options.arrival:
        rate_hz = 1.0  # as of lines of a file
    info = SourceInfo(name, name, "video", None, rate_hz, live=live)
    if size is not None and rate_hz is not None:
        info = replace(info, duration_s=size / rate_hz)
    if rate_hz is None:
        info = replace(info, began_s=time.time())
    if options.sound is not None:
        return AudioSamples(first, options, options.sound, rate_hz, info)
    kind = kind_of_value(first)
    if kind == "text":
        return _Lines(rate_hz, replace(info, kind="text"))
    if kind == "features":
        return _FeatureRows(first, rate_hz, info)
    if kind == "video":
        return _Frames(first, options, rate_hz, info)
    return _Skeletons(first, options, rate_hz, info)


def kind_of_value(first: Values) -> SourceKind:
    """Return the kind of a stream that is not sound, by its first value."""
    if first.dtype.kind == "U":
        return "text"
    if first.ndim == 1:
        return "features"
    joints = first.shape[-1:] in ((2,), (3,)) and first.dtype != np.uint8
    if first.ndim > 3 or (first.ndim == 3 and not (joints and len(first) <= _MOST_PERSONS)):
        return "video"
    return "skeleton"


def check_rate(rate_hz: float | None) -> None:
    """Raise UsageError unless this is a rate of values, in 1/s, or None."""
    if rate_hz is not None and not (isinstance(rate_hz, Real) and 0 < rate_hz < float("inf")):
        raise UsageError(f"must be a number above 0, not {rate_hz!r}", where="rate_hz")


class _Timed:
    """Base of the converters that number values and give them times."""

    def __init__(self, rate_hz: float | None) -> None:
        self._rate_hz, self._began_s, self._ahead_s = rate_hz, time.monotonic(), 0.0
        self.taken = 0
        self.slots: Slots | None = None
        self.rest: npt.NDArray[np.float32] | None = None

    @property
    def rest_s(self) -> float | None:
        """Time of the next value; None without a rate."""
        return None if self._rate_hz is None else self.taken / self._rate_hz + self._ahead_s

    def number(self, time_s: float | None) -> tuple[int, float]:
        """Return number and time of the next value; without ``time_s`` it follows the last one."""
        now_s = time.monotonic() - self._began_s
        if self._rate_hz is not None:
            now_s = self.taken / self._rate_hz
        if time_s is not None:
            self._ahead_s = time_s - now_s
        self.taken += 1
        return self.taken - 1, float(now_s + self._ahead_s if time_s is None else time_s)

    def finish(self) -> Iterator[Item]:
        """Yield nothing: every value is one item."""
        return iter(())

    def go_on(self, taken: int, time_s: float) -> None:
        """Continue numbers and times of an earlier stream."""
        self.taken = taken
        self._began_s -= time_s
        if self._rate_hz is not None:
            self._ahead_s = max(0.0, time_s - taken / self._rate_hz)


class _Frames(NotCopied, _Timed):
    """Frames uint8 [H, W, 3], red green blue; [H, W] and [H, W, 1] are grey."""

    def __init__(
        self, first: Values, options: SourceOptions, rate_hz: float | None, info: SourceInfo
    ) -> None:
        super().__init__(rate_hz)
        height, width = self._checked(first).shape[:2]
        self.info = replace(info, size=(width, height))
        self._options = options
        self._scaler, self._drawing_scaler = VideoReformatter(), VideoReformatter()

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        rgb = self._checked(value)
        i, at_s = self.number(time_s)
        options, size = self._options, (rgb.shape[1], rgb.shape[0])
        drawing = None
        if options.box is None and options.drawing is None:
            kept = np.array(rgb)  # a copy: cameras write the next frame to the same memory
            convert: Callable[[], npt.NDArray[np.uint8]] = partial(np.asarray, kept)
        else:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24")
            convert = LazyImage(picture, self._scaler, options.box, None)
            if options.drawing is not None:
                drawing = LazyImage(picture, self._drawing_scaler, options.drawing, None)
        yield VideoFrame(i, at_s, None, convert, drawing=drawing, size=size)

    @staticmethod
    def _checked(value: Values) -> npt.NDArray[np.uint8]:
        if value.dtype == np.uint8 and value.ndim == 2:
            value = value[..., None]
        if value.dtype != np.uint8:
            hint = _scaling_hint(value)
        elif value.ndim == 3 and value.shape[0] in (1, 3) and value.shape[2] not in (1, 3):
            hint = "move the channels to the end: frame.transpose(1, 2, 0)"
        elif value.ndim == 3 and value.shape[2] == 4:
            hint = "drop the alpha channel: frame[..., :3]"
        elif value.ndim != 3 or value.shape[2] not in (1, 3) or 0 in value.shape:
            hint = "give the frames of one stream one by one"
        else:
            return np.broadcast_to(value, (*value.shape[:2], 3))
        raise shape_error(value, "frames are uint8 [height, width, 3], red green blue", hint)


def _scaling_hint(frame: Values) -> str:
    if frame.ndim not in (2, 3):
        return "give the frames of one stream one by one"
    if frame.dtype.kind in "fb":
        return "scale it to 0 to 255 and convert it: (255 * frame).astype('uint8')"
    lowest, highest = frame.min(initial=0), frame.max(initial=0)
    if lowest < 0 or highest >= 2**16:
        return "scale it to 0 to 255 and convert it: frame.astype('uint8')"
    return f"convert it: {'frame' if highest < 256 else '(frame // 256)'}.astype('uint8')"


class _Skeletons(_Timed):
    """Joints [V, C] of one person or [M, V, C] of several, C = 3 (x, y up, z; metres) or 2.

    NaN, the origin or equal negative numbers: the joint is missing, see ``make_person``.
    """

    def __init__(
        self, first: Values, options: SourceOptions, rate_hz: float | None, info: SourceInfo
    ) -> None:
        super().__init__(rate_hz)
        self.slots = self._slots = Slots(max(1, options.persons))
        joints = self._checked(first)
        self._layout = _layout(options.layout, joints.shape[1])
        self._axes = joints.shape[2]
        self._shape = joints.shape[1:]
        self._unset, self._last_s = Placeholders(live=info.live), 0.0
        self._remark = UprightRemark(self._layout, "y points up here; negate the y of pictures")
        self.info = replace(info, kind="skeleton", layout=self._layout.name, axes=self._axes)

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        joints_of_all = self._checked(value)
        if joints_of_all.shape[1:] != self._shape:
            joints, axes = joints_of_all.shape[1:]
            hint = f"the first frame had {self._shape[0]} of {self._shape[1]}"
            raise UsageError(f"{joints} joints of {axes} coordinates", where=WHERE, hint=hint)
        i, at_s = self.number(time_s)
        persons = tuple(map(make_person, joints_of_all))
        self._last_s = at_s
        moment = PersonFrame(at_s, persons)
        yield from self._unset.add(moment)
        yield from self._remark.add(moment)
        if strays := sum(person.strays for person in persons):
            yield Fault(at_s, f"joints far from their person, treated as missing: {strays}")
        yield self._slots.frame(i, moment, self._layout, self._axes)

    def finish(self) -> Iterator[Item]:
        """Yield a remark on joints that were taken as missing."""
        yield from self._unset.finish(self._last_s)

    @staticmethod
    def _checked(value: Values) -> Values:
        joints = value[None] if value.ndim == 2 else value
        if joints.ndim != 3 or joints.dtype.kind not in "fiu" or joints.shape[2] not in _BODY_AXES:
            what = "joints are numbers [joints, 3] or [persons, joints, 3] (or 2 coordinates)"
            raise shape_error(value, what, "frames are uint8 [height, width, 3]")
        return joints


class _FeatureRows(_Timed):
    """Feature rows, numbers [C]."""

    def __init__(self, first: Values, rate_hz: float | None, info: SourceInfo) -> None:
        super().__init__(rate_hz)
        self._width = len(self._checked(first))
        self.info = replace(info, kind="features", width=self._width)

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        row = self._checked(value)
        if len(row) != self._width:
            raise UsageError(f"a row of {len(row)} values after {self._width}", where=WHERE)
        i, at_s = self.number(time_s)
        yield FeatureRow(i, at_s, row)

    @staticmethod
    def _checked(value: Values) -> npt.NDArray[np.float32]:
        if value.ndim == 1 and value.dtype.kind in "fiu":
            with np.errstate(over="ignore"):
                row: npt.NDArray[np.float32] = value.astype(np.float32)
            if np.isfinite(row).all():
                return row
        raise shape_error(value, "a feature row is finite numbers [values]", "check the row")


class _Lines(_Timed):
    """Lines of text; empty ones are ignored."""

    def __init__(self, rate_hz: float | None, info: SourceInfo) -> None:
        super().__init__(rate_hz)
        self.info = info

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        if value.dtype.kind != "U":
            raise UsageError("a line of text is a string", where=WHERE)
        i, at_s = self.number(time_s)
        if text := str(value).strip():
            yield TextLine(i, at_s, text, arrived_s=time.monotonic() if self.info.live else None)


def _layout(name: str | None, joints: int) -> Layout:
    """Return the layout of this name, or the only one with this number of joints."""
    if name is not None:
        layout = find_layout(name)
        if len(layout.joints) != joints:
            raise UsageError(f"{joints} joints, {layout.name} has {len(layout.joints)}")
        return layout
    fitting = [layout for layout in LAYOUTS.values() if len(layout.joints) == joints]
    if len(fitting) != 1:
        names = listed([layout.name for layout in fitting or LAYOUTS.values()])
        what = f"{joints} joints may be {names}" if fitting else f"no layout has {joints} joints"
        raise UsageError(what, where=WHERE, hint="name the layout: layout='ntu-25'")
    return fitting[0]
