"""Items of a source from single values: frames, audio samples, skeletons, feature rows, lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any, NoReturn, Protocol

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

from costream.core.errors import UsageError
from costream.core.formatting import listed
from costream.core.layouts import LAYOUTS, Layout, find_layout
from costream.core.records import (
    AudioBlock,
    AudioFormat,
    Fault,
    FeatureRow,
    Gap,
    Item,
    SkeletonFrame,
    SourceInfo,
    TextLine,
    VideoFrame,
)
from costream.sources.base import SourceOptions
from costream.sources.media.audio_decoder import SILENCE_S, Discontinuity
from costream.sources.media.picture import LazyImage
from costream.sources.media.resample import AudioBlockCutter
from costream.sources.skeletons.persons import PersonFrame, Placeholders, Slots, make_person
from costream.sources.skeletons.upright import UprightRemark

Values = npt.NDArray[Any]
WHERE = "frame"  # in messages
_CHANNELS = 32  # most of audio samples, and of joints' coordinates: larger axes are something else
_FOLLOWED = 10  # pieces in which times of audio are followed
_BODY_AXES = (2, 3)
_MOST_PERSONS = 16  # an array of floats with more rows is taken for a picture


class ItemConverter(Protocol):
    """Converts the values of one stream, given one by one, to items of a source."""

    info: SourceInfo
    taken: int  # values so far, or blocks of audio
    rest: npt.NDArray[np.float32] | None  # samples [channels, N] of audio behind the last block

    @property
    def slots(self) -> Slots | None:
        """Who is in which slot, of skeletons."""

    @property
    def rest_s(self) -> Fraction | float | None:
        """Time of the next value, or of the first sample of ``rest``; None: by the clock."""

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        """Yield the items that a value completes. ``time_s``: None: by its number and the rate.

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
    ``size``: the number of values, if known. Raises UsageError where something is missing or the
    first value is none of these.
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
        return _AudioSamples(first, options, options.sound, rate_hz, info)
    if first.dtype.kind == "U":
        return _Lines(rate_hz, replace(info, kind="text"))
    if first.ndim == 1:
        return _FeatureRows(first, rate_hz, info)
    joints = first.shape[-1:] in ((2,), (3,)) and first.dtype != np.uint8
    if first.ndim > 3 or (first.ndim == 3 and not (joints and len(first) <= _MOST_PERSONS)):
        return _Frames(first, options, rate_hz, info)
    return _Skeletons(first, options, rate_hz, info)


def check_rate(rate_hz: float | None) -> None:
    """Raise UsageError unless this is a rate of values, in 1/s, or None."""
    if rate_hz is not None and not (isinstance(rate_hz, Real) and 0 < rate_hz < float("inf")):
        raise UsageError(f"must be a number above 0, not {rate_hz!r}", where="rate_hz")


class _Uncopied:
    """A converter with decoders, which cannot be copied."""

    def __reduce__(self) -> NoReturn:
        hint = "save it to a file, and load that into another stream"
        raise TypeError(f"a stream of frames or sound is not copied: {hint}")


class _Timed:
    """Numbers and times of values."""

    def __init__(self, rate_hz: float | None) -> None:
        self._rate_hz, self._began_s, self._ahead_s = rate_hz, time.monotonic(), 0.0
        self.taken = 0
        self.slots: Slots | None = None
        self.rest: npt.NDArray[np.float32] | None = None

    @property
    def rest_s(self) -> float | None:
        """Time of the next value, if it is not that of the clock."""
        return None if self._rate_hz is None else self.taken / self._rate_hz + self._ahead_s

    def number(self, time_s: float | None) -> tuple[int, float]:
        """Return number and time of the next value; times that are not given follow the last."""
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


class _Frames(_Uncopied, _Timed):
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
        raise _shape_error(value, "frames are uint8 [height, width, 3], red green blue", hint)


def _scaling_hint(frame: Values) -> str:
    if frame.ndim not in (2, 3):
        return "give the frames of one stream one by one"
    if frame.dtype.kind in "fb":
        return "scale it to 0 to 255 and convert it: (255 * frame).astype('uint8')"
    lowest, highest = frame.min(initial=0), frame.max(initial=0)
    if lowest < 0 or highest >= 2**16:
        return "scale it to 0 to 255 and convert it: frame.astype('uint8')"
    return f"convert it: {'frame' if highest < 256 else '(frame // 256)'}.astype('uint8')"


class _AudioSamples(_Uncopied):
    """Audio samples, float32 (-1 to 1) or int16, [N] or [N, channels], in pieces of any length.

    Times that are off by up to ``SILENCE_S`` are followed slowly; later ones end a gap.
    """

    def __init__(
        self,
        first: Values,
        options: SourceOptions,
        sound: AudioFormat,
        rate_hz: float | None,
        info: SourceInfo,
    ) -> None:
        if rate_hz is None or rate_hz != int(rate_hz):
            hint = "give the samples per second: rate_hz=48000"
            raise UsageError("audio samples need their rate", where=WHERE, hint=hint)
        self._rate_hz, self._options, self._sound = int(rate_hz), options, sound
        self._channels = self._checked(first).shape[0]
        self._cutter: AudioBlockCutter | None = None
        self.slots: Slots | None = None
        self.rest: npt.NDArray[np.float32] | None = None
        self.taken, self._resumed = 0, False
        self._due_s = self.rest_s = Fraction(0)  # when the next sample is due
        self.info = replace(info, kind="audio")

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        samples = self._checked(value)
        if samples.shape[0] != self._channels:
            raise UsageError(f"{samples.shape[0]} channels after {self._channels}", where=WHERE)
        if samples.shape[1] == 0:
            return
        at_s = None if time_s is None else _micro(time_s)
        jump = None if at_s is None or self._cutter is None else self._jump(at_s)
        if self._cutter is None:
            yield from self._begin(at_s)
            if self.rest is not None:
                samples, self.rest = np.concatenate((self.rest, samples), 1), None
        planes = np.ascontiguousarray(samples)
        frame = av.AudioFrame.from_ndarray(planes, "fltp", f"{self._channels}c")
        frame.sample_rate = self._rate_hz
        if self._cutter is None:
            begun = {"time_s": self.rest_s, "origin_s": self.rest_s}
            self._cutter = AudioBlockCutter(
                frame, self._sound, self._options, WHERE, live=self.info.live, **begun
            )
        self._due_s += Fraction(samples.shape[1], self._rate_hz)
        for item in self._cutter.take(frame, jump):
            if isinstance(item, AudioBlock):
                self.rest_s = max(self.rest_s, Fraction(item.time_s))  # not one before a gap
                item = replace(item, i=self.taken)
                self.taken += 1
            yield item
        given = samples if self.rest is None else np.concatenate((self.rest, samples), 1)
        waiting = max(0, round((self._due_s - self.rest_s) * self._rate_hz))
        self.rest = given[:, given.shape[1] - waiting :]

    def _begin(self, at_s: Fraction | None) -> Iterator[Gap]:
        """Set the time of the first piece; yield the gap since a saved state, if there is one."""
        channels, count = (self._channels, 0) if self.rest is None else self.rest.shape
        if channels != self._channels:
            raise UsageError(f"{self._channels} channels after {channels}", where=WHERE)
        end_s = self._due_s + Fraction(count, self._rate_hz)
        if not self._resumed and at_s is not None:
            self._due_s = self.rest_s = at_s
        elif at_s is not None and at_s - end_s > SILENCE_S:
            yield Gap(float(self._due_s), float(at_s), f"no sound for {float(at_s - end_s):.3f} s")
            self._due_s, self.rest_s, self.rest = at_s, at_s, None

    def _jump(self, at_s: Fraction) -> Discontinuity:
        """Return what is before a piece that begins at this time, and go there."""
        ahead_s = at_s - self._due_s
        if ahead_s > SILENCE_S:
            self._due_s, self.rest_s, self.rest = at_s, at_s, None
            return Discontinuity(begins_s=at_s)
        shift_s = _micro(max(ahead_s, -SILENCE_S) / _FOLLOWED)
        self._due_s, self.rest_s = self._due_s + shift_s, self.rest_s + shift_s
        return Discontinuity(shift_s=shift_s)

    def go_on(self, taken: int, time_s: float) -> None:
        self.taken, self._resumed = taken, True
        self._due_s = self.rest_s = Fraction(time_s)

    def finish(self) -> Iterator[Item]:
        if self._cutter is not None:
            yield from self._cutter.finish()

    @staticmethod
    def _checked(value: Values) -> npt.NDArray[np.float32]:
        """Return float32 [channels, N]."""
        if value.dtype.kind == "i" and value.dtype.itemsize == 2:
            value = value.astype(np.float32) / 32768
        two = value[:, None] if value.ndim == 1 else value
        if two.ndim != 2 or two.dtype.kind != "f" or not 0 < two.shape[1] <= _CHANNELS:
            what = "audio is float (-1 to 1) or int16, [samples] or [samples, channels]"
            hint = "give one recording at a time"
            if two.dtype.kind != "f":
                hint = "scale it to -1 to 1: samples.astype('float32') / 2**31, for int32"
            elif two.ndim == 2 and two.size:
                hint = "transpose it: samples.T"
            raise _shape_error(value, what, hint)
        with np.errstate(over="ignore"):  # infinite samples are silence
            return np.ascontiguousarray(two.T, np.float32)


def _micro(time_s: float | Fraction) -> Fraction:
    return Fraction(round(time_s * 1_000_000), 1_000_000)  # so that fractions stay short


class _Skeletons(_Timed):
    """Joints [V, C] of one person or [M, V, C] of several, C = 3 (x, y up, z; metres) or 2.

    NaN, the origin or equal negative numbers: the joint is missing, see ``make_person``.
    """

    def __init__(
        self, first: Values, options: SourceOptions, rate_hz: float | None, info: SourceInfo
    ) -> None:
        super().__init__(rate_hz)
        self._persons = max(1, options.persons)
        self.slots = self._slots = Slots(self._persons)
        joints = self._checked(first)
        self._layout = _layout(options.layout, joints.shape[1])
        self._axes = joints.shape[2]
        self._shape = joints.shape[1:]
        self._unset, self._last_s = Placeholders(live=info.live), 0.0
        self._remark = UprightRemark(self._layout, "y counts upwards here, negate it in pictures")
        self.info = replace(info, kind="skeleton", layout=self._layout.name, axes=self._axes)

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        given = self._checked(value)
        if given.shape[1:] != self._shape:
            joints, axes = given.shape[1:]
            hint = f"the first frame had {self._shape[0]} of {self._shape[1]}"
            raise UsageError(f"{joints} joints of {axes} coordinates", where=WHERE, hint=hint)
        i, at_s = self.number(time_s)
        persons = tuple(map(make_person, given))
        self._last_s = at_s
        moment = PersonFrame(at_s, persons)
        yield from self._unset.add(moment)
        yield from self._remark.add(moment)
        if strays := sum(person.strays for person in persons):
            yield Fault(at_s, f"joints far away from their person, taken as missing: {strays}")
        placed = self._slots.place(moment)
        joints = np.zeros((self._persons, *self._shape), np.float32)
        scores = np.zeros((self._persons, self._shape[0]), np.float32)
        for slot, person in enumerate(placed):
            if person is not None:
                joints[slot], scores[slot] = person.joints, person.scores
        numbers = tuple(self._slots.numbers)
        yield SkeletonFrame(i, at_s, joints, scores, self._layout, persons=numbers)

    def finish(self) -> Iterator[Item]:
        """Yield a remark on joints that were taken as missing."""
        yield from self._unset.finish(self._last_s)

    @staticmethod
    def _checked(value: Values) -> Values:
        joints = value[None] if value.ndim == 2 else value
        if joints.ndim != 3 or joints.dtype.kind not in "fiu" or joints.shape[2] not in _BODY_AXES:
            what = "joints are numbers [joints, 3] or [persons, joints, 3] (or 2 coordinates)"
            raise _shape_error(value, what, "frames are uint8 [height, width, 3]")
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
        raise _shape_error(value, "a feature row is finite numbers [values]", "check the row")


class _Lines(_Timed):
    """Lines of text; those without any word are left out."""

    def __init__(self, rate_hz: float | None, info: SourceInfo) -> None:
        super().__init__(rate_hz)
        self.info = info

    def items(self, value: Values, time_s: float | None) -> Iterator[Item]:
        if value.dtype.kind != "U":
            raise UsageError("a line of text is a string", where=WHERE)
        i, at_s = self.number(time_s)
        if text := str(value).strip():
            yield TextLine(i, at_s, text, arrived_s=time.monotonic() if self.info.live else None)


def as_array(value: Any) -> Values:
    """Return a value as an array. Raises UsageError for values that are none."""
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if value.is_floating_point() and value.element_size() < 4:  # NumPy has no bfloat16
            value = value.float()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and (array.dtype.kind != "U" or array.ndim):
        raise UsageError(f"not an array of numbers, but {type(value).__name__}", where=WHERE)
    return array


def _layout(name: str | None, joints: int) -> Layout:
    """Return the layout of this name, or the only one with so many joints."""
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


def _shape_error(value: Values, what: str, hint: str) -> UsageError:
    shape = ", ".join(map(str, value.shape))
    return UsageError(f"{what}; this is {value.dtype} [{shape}]", where=WHERE, hint=hint)
