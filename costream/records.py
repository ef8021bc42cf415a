"""Everything that crosses a seam: items from sources to models, records from runs to sinks.

Units are in the field names, shapes and colour order in the comments. The JSON form of a record
is ``to_json(record)``: one flat object whose ``type`` names the class. The schema id changes
only when a reader would break; new types and new fields are additive.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:  # the command line reads this file before it knows whether it needs NumPy
    import numpy as np
    import numpy.typing as npt

    from costream.layouts import Layout

SCHEMA = "costream/1"
OBJECT_DETECTION = "object detection"  # the task of models that give Objects, not Prediction

# --- items: source -> frontend ---------------------------------------------------------------


@dataclass(frozen=True)
class VideoFrame:
    """One decoded picture.

    ``rgb`` is converted and resized when first read, not before, so a frame that the model's
    clock skips costs no resize.
    """

    i: int  # index of the frame in decoding order, from 0
    time_s: float  # media time, seconds, the container's own clock
    pts: int | None  # presentation time stamp in units of time_base, None when missing
    convert: Callable[[], npt.NDArray[np.uint8]] = field(repr=False)
    motion: npt.NDArray[np.void] | None = None  # codec motion vectors, FFmpeg's struct fields
    estimated: bool = False  # time_s was interpolated because the pts is missing
    corrupt: bool = False  # the decoder says the picture is damaged
    drawing: Callable[[], npt.NDArray[np.uint8]] | None = field(default=None, repr=False)  # larger
    arrived_s: float | None = None  # live: time.monotonic() when a frame of its time is due here
    size: tuple[int, int] | None = None  # upright width, height of the source; None: as ``rgb``
    earlier: tuple[VideoFrame, ...] = ()  # those before it that belong to the same step

    @cached_property
    def rgb(self) -> npt.NDArray[np.uint8]:
        """Pixels, uint8 [H, W, 3], red green blue, upright, fitted into the requested box."""
        return self.convert()


@dataclass(frozen=True)
class AudioBlock:
    """A stretch of sound as long as a step of the model.

    What is known once it has been heard is known at its end, so that is its time. The last one
    of a source may end in zeros.
    """

    i: int  # index of the block, from 0
    time_s: float  # media time of its end, seconds, the container's own clock
    samples: npt.NDArray[np.float32] = field(repr=False)  # float32 [N], mono, -1 to 1
    pts: int | None = None  # of its first sample, in samples of the source; None: not known
    arrived_s: float | None = None  # live: time.monotonic() when its last sample came


@dataclass(frozen=True)
class FeatureRow:
    """One row of a precomputed feature file; goes straight to the temporal model."""

    i: int
    time_s: float
    values: npt.NDArray[np.float32]  # float32 [C]
    pts: None = None


@dataclass(frozen=True)
class SkeletonFrame:
    """The joints of the persons at one moment.

    A joint that is missing has score 0 and zeros for coordinates; a person that is absent has
    only such joints. A person keeps its slot while it is seen.
    """

    i: int
    time_s: float
    joints: npt.NDArray[np.float32]  # float32 [M, V, C], C = 3: x, y up, z, metres; 2: x, y up
    scores: npt.NDArray[np.float32]  # float32 [M, V], 0 to 1
    layout: Layout  # which joint is which
    pts: None = None
    places: npt.NDArray[np.float32] | None = None  # [M, V, 2] in the picture, 0 to 1, y down


@dataclass(frozen=True)
class Gap:
    """Time without data: the source says so, or the clock found it. Also a record."""

    type: ClassVar[str] = "gap"
    start_s: float
    end_s: float
    reason: str


@dataclass(frozen=True)
class Fault:
    """Damage in a source. ``fatal``: nothing could be read after it. Also a record."""

    type: ClassVar[str] = "error"
    time_s: float | None
    message: str
    fatal: bool = False
    count: int = 1  # damaged packets or frames this stands for


Data: TypeAlias = VideoFrame | AudioBlock | FeatureRow | SkeletonFrame
Item: TypeAlias = Data | Gap | Fault

# --- records: run -> sinks -------------------------------------------------------------------

Scored: TypeAlias = tuple[str, float]  # label, probability


@dataclass(frozen=True)
class Head:
    """One of several classifiers on one frontend; its records carry its name."""

    model: str
    weights_sha256: str
    labels: tuple[str, ...]  # in the order of its predictions' scores
    background: str | None
    delay_s: float
    threshold: float  # that opens a segment
    thresholds: dict[str, float] = field(default_factory=dict)  # of labels with one of their own
    smooth_s: float = 0.0  # of the scores that its segments are made of, see Timeline
    temperature: float = 1.0  # that its logits were divided by

    def threshold_of(self, label: str) -> float:
        """Give the probability that opens a segment of a label."""
        return self.thresholds.get(label, self.threshold)


@dataclass(frozen=True)
class Header:
    """First record of a run over one source."""

    type: ClassVar[str] = "header"
    version: str
    model: str
    weights_sha256: str
    labels: tuple[str, ...]
    background: str | None  # the label that is no event, if any
    rate_hz: float  # steps a second
    delay_s: float  # an event seen at time_s happened at about time_s - delay_s
    source: str  # redacted URI
    kind: str  # "video", "audio", "features" or "skeleton"
    duration_s: float | None  # length to be processed, None when unknown
    options: dict[str, Any]
    schema: str = SCHEMA
    heads: tuple[Head, ...] | None = None  # where several models listen; labels: those of all
    began: str | None = None  # live: when 0 s was, ISO 8601, UTC
    task: str | None = None  # of the model's card


@dataclass(frozen=True)
class Prediction:
    """What was known at ``time_s``."""

    type: ClassVar[str] = "prediction"
    i: int  # step, from 0
    time_s: float
    frame: int  # index of the source frame or row that the step used
    pts: int | None
    top: tuple[Scored, ...]  # best first
    scores: tuple[float, ...] | None = None  # every class, in the header's order (--scores)
    anticipation: tuple[tuple[Scored, ...], ...] | None = None  # [future step][rank]
    warmup: bool = False  # the model's window is not full yet
    fresh: bool = True  # False: no new frame since the previous step
    model: str | None = None  # which of the header's heads; None: there is one


@dataclass(frozen=True)
class Box:
    """An object in a picture. As JSON: [x1, y1, x2, y2, score, label], and its id if it has one."""

    x1: float  # left, top, right and bottom edge, pixels of the source's upright picture
    y1: float
    x2: float
    y2: float
    score: float
    label: str
    id: int | None = None  # of the object through the frames (--track)


@dataclass(frozen=True)
class Objects:
    """The objects that were seen at ``time_s``, the surest first."""

    type: ClassVar[str] = "objects"
    i: int  # step, from 0
    time_s: float
    frame: int  # index of the source frame
    pts: int | None
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Segment:
    """A closed stretch of the timeline."""

    type: ClassVar[str] = "segment"
    start_s: float
    end_s: float
    label: str
    score: float  # mean probability of the label over the segment's steps
    model: str | None = None  # which of the header's heads; None: there is one
    count: int | None = None  # objects: the most of the label that were seen at once


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds spent on one step, by stage."""

    decode: float
    frontend: float
    network: float
    sink: float


@dataclass(frozen=True)
class Compute:
    """What one step cost."""

    type: ClassVar[str] = "compute"
    i: int
    time_s: float
    macs: int  # multiply-accumulates really spent on this step, frontend included
    dense_macs: int  # the same answer without continual inference
    ms: StageTimes
    lag_s: float = 0.0  # live sources: now minus frame time
    dropped: int = 0  # frames dropped so far
    tokens: int | None = None  # token-gated models: tokens updated
    # What the step was allowed to cost: ms, or MACs; without tokens: the part of steps taken.
    budget: float | None = None


@dataclass(frozen=True)
class Alert:
    """A rule of a watch has fired."""

    type: ClassVar[str] = "alert"
    time_s: float  # when it fired
    rule: str  # as it was written: "falling>=0.8 for 2s"
    label: str
    score: float  # of the label when it fired
    since_s: float  # since when the condition held
    clip: str | None = None  # name of the file with the seconds around it


@dataclass(frozen=True)
class Picture:
    """What a step looked at or heard, for sinks that draw. It goes to no file of records."""

    time_s: float
    item: Data
    skeleton: SkeletonFrame | None  # the persons in it, where the model looks at such
    spectrum: npt.NDArray[np.float32] | None = (
        None  # sound: [frames, bands], ln of power, low first
    )
    updated: npt.NDArray[np.bool_] | None = None  # token-gated: [h, w], computed in this step


@dataclass(frozen=True)
class Summary:
    """Last record of a run over one source.

    ``complete`` is False after an interruption or a fault that ended the source early.
    """

    type: ClassVar[str] = "summary"
    steps: int
    segments: int
    dropped: int
    errors: int
    media_s: float  # media time processed
    wall_s: float
    x_realtime: float | None
    macs: int  # over the run
    dense_macs: int
    complete: bool
    exit: int
    drift_ppm: float | None = None  # live: how much faster the source's clock ran than ours


Record: TypeAlias = Prediction | Objects | Segment | Compute | Gap | Fault | Alert
AnyRecord: TypeAlias = Header | Record | Summary


def to_json(record: AnyRecord) -> dict[str, Any]:
    """Give a record as plain JSON values.

    Floats are rounded to 6 decimals, non-finite ones are null, optional fields that are absent
    are left out.
    """
    out: dict[str, Any] = {"type": record.type}
    if isinstance(record, Header):
        out["schema"] = record.schema
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if value is None and f.default is None:
            continue
        out[f.name] = plain(value)
    return out


def plain(value: Any) -> Any:
    """Give ``value`` with NumPy types, tuples and dataclasses turned into JSON values."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, Box):
        box = (value.x1, value.y1, value.x2, value.y2, value.score, value.label)
        return [plain(v) for v in (box if value.id is None else (*box, value.id))]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value
