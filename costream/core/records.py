"""Data types shared by all stages: items from sources to models, records from runs to sinks.

Units are in the field names, shapes and colour order in the comments. ``str`` of a record is a line
for people. Its JSON form is ``to_json(record)``: one flat object whose ``type`` names the class.
The schema id changes only when readers would break; new types and new fields are additive.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from costream.core.errors import clean
from costream.core.notebook import boxes_html, scores_html
from costream.core.places import Crossing, ZoneEvent
from costream.core.units import counted, short_time, si

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from costream.core.layouts import Layout

SCHEMA = "costream/1"
OBJECT_DETECTION = "object detection"  # task of models that output Objects, not Prediction
POSE_ESTIMATION = "pose estimation"  # task of networks that find joints for other models
AUDIO_TAGGING = "audio tagging"  # of models whose labels do not exclude one another
IMAGE_CLASSIFICATION = "image classification"  # of models that know what a picture shows
THRESHOLD = 0.5  # default probability that opens a segment
LATEST_S = 1e12
SUM = msgspec.Meta(ge=-1e30, le=1e30)
# What a record may hold: finite times; steps, frames and time stamps as in files of media; numbers
# whose sums do not overflow, of which null stands for 0.
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-LATEST_S, le=LATEST_S)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63) + 1, le=2**63 - 1)]
Sum: TypeAlias = Annotated[float, SUM]
LOW = 0.6  # default lower threshold of a label, as a share of its threshold


@dataclass(frozen=True)
class VideoFrame:
    """One decoded video frame; ``rgb`` is converted and resized on first access only."""

    i: int  # index of the frame in decoding order, from 0
    time_s: float  # media time, seconds, by the clock of the container
    pts: int | None  # presentation time stamp in units of time_base, None when missing
    convert: Callable[[], npt.NDArray[np.uint8]] = field(repr=False)
    motion: npt.NDArray[np.void] | None = None  # codec motion vectors, FFmpeg's struct fields
    estimated: bool = False  # time_s was interpolated because the pts is missing
    corrupt: bool = False  # the decoder reports errors in the frame
    drawing: Callable[[], npt.NDArray[np.uint8]] | None = field(default=None, repr=False)  # larger
    arrived_s: float | None = None  # live: time.monotonic() at which a frame of its time is due
    size: tuple[int, int] | None = None  # upright width, height of the source; None: as ``rgb``
    earlier: tuple[VideoFrame, ...] = ()  # preceding frames of the same step
    sound: tuple[AudioBlock, ...] = ()  # audio that ended since the previous step

    @cached_property
    def rgb(self) -> npt.NDArray[np.uint8]:
        """Pixels, uint8 [H, W, 3], red green blue, upright, fitted into the requested box."""
        return self.convert()


@dataclass(frozen=True)
class AudioBlock:
    """A block of audio as long as one step of the model.

    Its time is that of its end, when its result can be known. The last one of a source may be
    padded with zeros.
    """

    i: int  # index of the block, from 0
    time_s: float  # media time of its end, seconds, by the clock of the container
    samples: npt.NDArray[np.float32] = field(repr=False)  # float32 [N], mono, -1 to 1
    pts: int | None = None  # of its first sample, in samples of the source; None: unknown
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
    layout: Layout  # names and order of the joints
    pts: None = None
    places: npt.NDArray[np.float32] | None = None  # [M, V, 2] in the image, 0 to 1, y down
    persons: tuple[int, ...] | None = None  # [M] number of the person in each slot, 0: nobody yet


@dataclass(frozen=True)
class TextLine:
    """A line of text, or a word of one; goes through the frontend in as many tokens as it has."""

    i: int  # number of the line in its source, from 0
    time_s: float  # the same as seconds, or when it came; words of a line are between two lines
    text: str
    ends: bool = True  # the line ends here
    pts: None = None
    arrived_s: float | None = None  # live: time.monotonic() when it came


@dataclass(frozen=True)
class Gap:
    """Time without data, reported by the source or found by the clock. Also a record."""

    type: ClassVar[str] = "gap"
    start_s: Seconds  # from here on there is no data ...
    end_s: Seconds  # ... until here; then the state of the model is reset
    reason: str  # why, in words

    def __str__(self) -> str:
        return f"{_span(self.start_s, self.end_s)}  no data: {clean(self.reason)}"


@dataclass(frozen=True)
class Fault:
    """An error in a source. ``fatal``: nothing could be read after it. Also a record."""

    type: ClassVar[str] = "error"
    time_s: Seconds | None  # where in the source, null when unknown
    message: str  # what is damaged, in words
    fatal: bool = False  # nothing could be read after it
    count: Count = 1  # damaged packets or frames; 0: a remark, nothing is lost

    def __str__(self) -> str:
        at = "" if self.time_s is None else f"{short_time(self.time_s, 2)}  "
        return f"{at}error: {clean(self.message)}"


Data: TypeAlias = VideoFrame | AudioBlock | FeatureRow | SkeletonFrame | TextLine
Item: TypeAlias = Data | Gap | Fault
Scored: TypeAlias = tuple[str, float]  # label, probability


class Thresholds:
    """The probabilities at which labels open and close; a base of settings."""

    threshold: float
    low: float | None = None  # None: LOW times the threshold
    thresholds: dict[str, float]  # of single labels
    presence_s: float  # see ``hysteresis.LastingPresence``

    def threshold_of(self, label: str) -> float:
        """Return the probability at which a label opens."""
        return self.thresholds.get(label, self.threshold)

    def low_of(self, label: str) -> float:
        """Return the probability below which a label closes, in proportion to its threshold."""
        if self.low is None:
            return LOW * self.threshold_of(label)
        if label not in self.thresholds:
            return self.low
        return self.low / self.threshold * self.thresholds[label]


@dataclass(frozen=True)
class Head(Thresholds):
    """One of several classifiers on one frontend; its records carry its name."""

    model: str  # name of its model card
    weights_sha256: str  # checksum of its weights
    labels: tuple[str, ...]  # in the order of its predictions' scores
    background: str | None  # its label that is not an event, if any
    delay_s: float  # as in the header
    threshold: float  # probability that opens a segment
    thresholds: dict[str, float] = field(default_factory=dict)  # thresholds of individual labels
    smooth_s: float = 0.0  # time constant of the scores' smoothing: How steps become segments
    presence_s: float = 0.0  # time constant of the presence: How steps become segments
    temperature: float = 1.0  # divisor of its logits
    low: float | None = None  # probability below which a label closes; null: LOW x threshold
    familiar: float | None = None  # familiarity from which its labels are to be trusted


@dataclass(frozen=True)
class Header:
    """First record of a run over one source."""

    type: ClassVar[str] = "header"
    version: str  # of costream
    model: str  # name of the model card
    weights_sha256: str  # checksum of the weights
    labels: tuple[str, ...]  # class names, in the order of `scores`
    background: str | None  # the label that is not an event, if any
    rate_hz: float  # steps a second
    delay_s: float  # an event seen at time_s happened at about time_s - delay_s
    source: str  # path or URL, without credentials
    kind: str  # "video", "audio", "features", "skeleton" or "text"
    duration_s: float | None  # length to be processed; null: unknown
    options: dict[str, Any]  # settings that change the results
    schema: str = SCHEMA  # changes only when readers would break
    heads: tuple[Head, ...] | None = None  # several models; `labels`: of all
    began: str | None = None  # live: time of day at 0 s, ISO 8601, UTC
    task: str | None = None  # of the model, if not the recognition of classes
    persons: Count | None = None  # maximum at one time, if each person has predictions
    frame_rate_hz: float | None = None  # video: frames a second of the source, if known

    def __str__(self) -> str:
        return f"{clean(self.source)}: {clean(self.model)}, {self.rate_hz:g} steps a second"


@dataclass(frozen=True)
class Prediction:
    """The class scores that are available at ``time_s``."""

    type: ClassVar[str] = "prediction"
    i: Count  # step, from 0
    time_s: Seconds  # when the results are available
    frame: Count  # index of the row used; frames and blocks of sound are counted from `--start`
    pts: Count | None  # its time stamp in time-base units
    top: tuple[Scored, ...]  # [[label, probability], ...], best first (--top-k)
    scores: tuple[float, ...] | None = None  # every class, in the header's order (--scores)
    anticipation: tuple[tuple[Scored, ...], ...] | None = None  # a `top` a future step
    warmup: bool = False  # the model's window is not full yet
    fresh: bool = True  # false: no new frame since the previous step
    model: str | None = None  # name of the head, if there are several
    familiarity: float | None = None  # 0 to 1: how familiar the input is to the model
    person: Count | None = None  # number of the person, from 1, if each has predictions
    text: str | None = None  # the line, or word, of models for text

    def __str__(self) -> str:
        best = "  ".join(f"{clean(label)} {score:.2f}" for label, score in self.top)
        line = [] if self.text is None else [clean(self.text)]
        return "  ".join([short_time(self.time_s, 2), *_of(self.model, self.person), best, *line])

    def _repr_html_(self) -> str:
        return scores_html(self.time_s, self.top)


@dataclass(frozen=True)
class Box:
    """A detected object. As JSON: [x1, y1, x2, y2, score, label], then id and zones if any."""

    x1: float  # left edge, pixels of the source's upright frame
    y1: float  # top edge
    x2: float  # right edge
    y2: float  # bottom edge
    score: float  # probability
    label: str  # what it is
    id: Count | None = None  # track id (--track)
    zones: tuple[str, ...] = ()  # names of the zones that it stands in


@dataclass(frozen=True)
class Objects:
    """The objects detected at ``time_s``, by descending score."""

    type: ClassVar[str] = "objects"
    i: Count  # step, from 0
    time_s: Seconds  # when the results are available
    frame: Count  # index of the source frame, counted from `--start`
    pts: Count | None  # its time stamp in time-base units
    boxes: tuple[Box, ...]  # [[x1, y1, x2, y2, score, label], ...], then the id, and zones

    def __str__(self) -> str:
        counts = Counter(box.label for box in self.boxes).most_common()
        found = ", ".join(f"{count} {clean(label)}" for label, count in counts)
        return f"{short_time(self.time_s, 2)}  {found or 'nothing'}"

    def _repr_html_(self) -> str:
        return boxes_html(self.time_s, self.boxes)


@dataclass(frozen=True)
class Segment:
    """A finished segment of the timeline."""

    type: ClassVar[str] = "segment"
    start_s: Seconds  # start ...
    end_s: Seconds  # ... and end
    label: str  # what was seen or heard
    score: float  # mean probability of the label over the segment's steps
    model: str | None = None  # name of the head, if there are several
    count: Count | None = None  # objects: maximum number of the label at one time
    person: Count | None = None  # number of the person, from 1

    def __str__(self) -> str:
        most = [] if self.count is None else [f"x{self.count}"]
        about = [*_of(self.model, self.person), clean(self.label), *most, f"{self.score:.2f}"]
        return "  ".join([_span(self.start_s, self.end_s), *about])


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds spent on one step, by stage."""

    decode: Sum  # reading and decoding; of a live source without the waiting for it
    frontend: Sum  # images, sound or joints to tokens
    network: Sum  # tokens to outputs
    sink: Sum  # writing and drawing, of the previous step


STAGES = tuple(f.name for f in dataclasses.fields(StageTimes))


@dataclass(frozen=True)
class Compute:
    """Cost of one step."""

    type: ClassVar[str] = "compute"
    i: Count  # step, from 0
    time_s: Seconds  # as in its prediction
    macs: int  # multiply-accumulates actually spent on this step, frontend included
    dense_macs: int  # of an output without continual inference
    ms: StageTimes  # milliseconds by stage: {decode, frontend, network, sink}
    lag_s: Sum = 0.0  # live sources: now minus frame time
    dropped: Count = 0  # frames dropped so far
    tokens: Count | None = None  # token-gated models: tokens updated
    budget_ms: float | None = None  # token-gated models: allowed time of the step ...
    budget_macs: float | None = None  # ... or allowed operations
    budget_share: float | None = None  # other models in a watch: share of the steps taken
    # Reasons: of nanodet first, motion or age; of mn04 sound; of costgcn-2d motion or new.
    ran: dict[str, str] | None = None  # why networks ran that do not at each step: {nanodet: age}
    joules: float | None = None  # used by the machine since the step before, where it is measured
    area: float | None = None  # nanodet: share of the picture that was computed, if not all
    policy: str | None = None  # how what is computed was chosen: learned, distance, change
    parts: dict[str, int] | None = None  # several networks with one budget: macs of each

    @property
    def budget(self) -> float | None:
        """The budget without its unit, which readers of ``costream/1`` may rely on."""
        budgets = (self.budget_ms, self.budget_macs, self.budget_share)
        return next((budget for budget in budgets if budget is not None), None)

    def __str__(self) -> str:
        work = f"{si(self.macs, 'MAC')} of {si(self.dense_macs, 'MAC')}"
        took_ms = self.ms.frontend + self.ms.network
        return f"{short_time(self.time_s, 2)}  step {self.i}: {work}, {took_ms:.1f} ms"


@dataclass(frozen=True)
class Alert:
    """An alert rule that fired during a watch."""

    type: ClassVar[str] = "alert"
    time_s: Seconds  # when it fired
    rule: str  # as written: "fall>=0.8 for 2s"
    label: str  # that was recognised, or gap, or lost
    score: float  # of the label when it fired
    since_s: Seconds  # start of the time in which the condition held
    clip: str | None = None  # file name of the recording of the seconds around it
    snapshot: str | None = None  # file name of the picture of that step
    place: str | None = None  # zone or line of the rule
    id: Count | None = None  # track id of the object
    level_db: float | None = None  # rules about the sound level: how loud it was
    person: Count | None = None  # number of the person, if persons have numbers
    held: Count | None = None  # times that it was held back by its pause, since the one before

    def __str__(self) -> str:
        what = f"alert: {clean(self.label)} {self.score:.2f}  ({clean(self.rule)})"
        return f"{short_time(self.time_s, 2)}  {what}"


@dataclass(frozen=True)
class AlertNote:
    """What became known of an alert after it was recorded."""

    type: ClassVar[str] = "note"
    time_s: Seconds  # of the alert
    rule: str  # of the alert
    label: str  # of the alert
    person: Count | None = None  # of the alert
    id: Count | None = None  # of the alert
    clip: str | None = None  # file name of its recording, with --no-speech-clips
    description: str | None = None  # what a model said that its picture shows (--describe)

    @classmethod
    def of(
        cls, alert: Alert, *, clip: str | None = None, description: str | None = None
    ) -> AlertNote:
        """Return a note about an alert."""
        about = (alert.time_s, alert.rule, alert.label, alert.person, alert.id)
        return cls(*about, clip, description)

    def is_about(self, alert: Alert) -> bool:
        """Return whether this alert is the one."""
        return replace(self, clip=None, description=None) == AlertNote.of(alert)

    def __str__(self) -> str:
        what = self.description or self.clip or ""
        return f"{short_time(self.time_s, 2)}  {clean(self.label)}: {clean(what)}"


@dataclass(frozen=True)
class Level:
    """The sound level of a step (``--levels``), in dB of full scale, plus ``--full-scale``."""

    type: ClassVar[str] = "level"
    time_s: Seconds  # as in its prediction
    db: float  # root mean square, at least 96 below full scale
    dba: float | None = None  # the same A-weighted (--levels dBA)

    def __str__(self) -> str:
        weighted = "" if self.dba is None else f", {self.dba:.1f} dBA"
        return f"{short_time(self.time_s, 2)}  level {self.db:.1f} dB{weighted}"


@dataclass(frozen=True)
class Picture:
    """Input of a step, for sinks that draw. It is not written to files of records."""

    time_s: Seconds
    item: Data
    skeleton: SkeletonFrame | None  # the persons in it, for models of skeletons
    # Audio: spectrogram [frames, bands], ln of power, low frequencies first.
    spectrum: npt.NDArray[np.float32] | None = None
    updated: npt.NDArray[np.bool_] | None = None  # token-gated: [h, w], computed in this step
    pending: tuple[Segment, ...] = ()  # that the timeline would end with now


@dataclass(frozen=True)
class Summary:
    """Last record of a run over one source.

    ``complete`` is False after an interruption or a fault that ended the source early.
    """

    type: ClassVar[str] = "summary"
    steps: Count  # number of steps
    segments: Count  # number of segments
    dropped: Count  # frames or steps dropped to keep up
    errors: Count  # damaged packets, frames or rows
    media_s: Sum  # media time processed
    wall_s: Sum  # time it took; null in a batch
    x_realtime: float | None  # their ratio
    macs: int  # multiply-accumulates over the run
    dense_macs: int  # without continual inference
    complete: bool  # false after an interruption or a fault that ended the source early
    exit: Count  # exit code for this source
    drift_ppm: float | None = None  # live: clock of the source against the local one, > 0: faster
    network_macs: int | None = None  # of `macs`, without the frontend, if it is counted
    network_dense_macs: int | None = None  # the same of `dense_macs`
    unfamiliar_s: float | None = None  # of `media_s`, below the limit of familiarity
    persons: Count | None = None  # who were seen, if each person has predictions
    persons_s: float | None = None  # for how long, the sum over persons
    acting_s: float | None = None  # of that, with a segment: an action is known
    shares: dict[str, float] | None = None  # of the time of models with one budget: {nanodet: 0.6}
    joules: float | None = None  # used by the whole machine meanwhile, where it is measured

    def __str__(self) -> str:
        whole = "" if self.complete else ", incomplete"
        found = counted(self.segments, "segment")
        return f"{found} in {self.media_s:.1f} s of media, {counted(self.steps, 'step')}{whole}"


def _span(start_s: float, end_s: float) -> str:
    return f"{short_time(start_s, 2)} - {short_time(end_s, 2)}"


def _of(model: str | None, person: int | None) -> list[str]:
    """Return the names of the head and of the person that a record is about."""
    head = [] if model is None else [clean(model)]
    return head if person is None else [*head, f"person {person}"]


Record: TypeAlias = (
    Prediction
    | Objects
    | Segment
    | Compute
    | Gap
    | Fault
    | Alert
    | AlertNote
    | ZoneEvent
    | Crossing
    | Level
)
AnyRecord: TypeAlias = Header | Record | Summary


def to_json(record: AnyRecord) -> dict[str, Any]:
    """Return a record as plain JSON values.

    Floats are rounded to 6 decimals, non-finite ones are null, optional fields that are absent
    are left out. A compute record has its budget twice: with its unit, and as ``budget``.
    """
    out: dict[str, Any] = {"type": record.type}
    if isinstance(record, Header):
        out["schema"] = record.schema
    kind: Any = type(record)
    for name, default in _fields(kind):
        value = getattr(record, name)
        if value is None and default is None:
            continue
        out[name] = plain(value)
    if isinstance(record, Compute) and record.budget is not None:
        out["budget"] = plain(record.budget)
    return out


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names of a dataclass's fields, and their defaults."""
    return tuple((f.name, f.default) for f in dataclasses.fields(kind))


def dumps(value: object) -> str:
    """Return JSON text on one line. Values come from ``to_json`` or ``plain``, without NaN."""
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)


def plain(value: Any) -> Any:
    """Return ``value`` with NumPy types, tuples and dataclasses turned into JSON values."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Box):
        box = (value.x1, value.y1, value.x2, value.y2, value.score, value.label)
        more = (value.id, value.zones) if value.zones else (value.id,)
        return [plain(v) for v in (box if value.id is None else (*box, *more))]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name, _ in _fields(type(value))}
    return value


# "connecting": not open yet; "live": receiving data; "stalled": open, but no data for a while;
# "waiting": lost, will be retried; "off": switched off; "lost": given up; "ended": finished, or
# stopped
FeedState = Literal["connecting", "live", "stalled", "waiting", "off", "lost", "ended"]


PixelSize: TypeAlias = tuple[int, int]  # width, height
# Suffixes of sources that are a still image.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
SourceKind = Literal["video", "audio", "features", "skeleton", "text"]


@dataclass(frozen=True)
class AudioFormat:
    """Audio format of a model: mono, in blocks of one step each."""

    rate_hz: int  # samples per second
    block: int  # samples per step


@dataclass(frozen=True)
class RawAudioFormat:
    """Format of headerless samples (raw PCM)."""

    form: str  # FFmpeg's name of the sample format: s16le, f32le, ...
    rate_hz: int
    channels: int = 1


@dataclass(frozen=True)
class SourceInfo:
    """Information about an open source."""

    name: str  # base name of output files, e.g. "clip.mp4"
    uri: str  # redacted
    kind: SourceKind
    duration_s: float | None  # total length; None if unknown (streams, stdin)
    rate_hz: float | None  # nominal frames or rows per second
    size: tuple[int, int] | None = None  # upright width, height of the frames
    width: int | None = None  # features: values per row
    layout: str | None = None  # skeletons: name of the joint layout
    joints: Layout | None = None  # and the layout, if it is not one of costream
    axes: int | None = None  # skeletons: coordinates per joint, 2 or 3
    format: str | None = None  # skeletons: name of the format that was recognised
    extra_audio: bool = False  # sound accompanies the video
    silent: str | None = None  # why it does not, if known
    live: bool = False  # data arrive in real time: nothing may wait for more of them
    began_s: float | None = None  # live: time.time() at media time 0
    assumed: tuple[str, ...] = ()  # what the data do not say, and how they are taken; a line each


def finds_objects(header: Header) -> bool:
    """Return whether a run writes Objects instead of Prediction."""
    return header.task == OBJECT_DETECTION


def has_overlaps(header: Header) -> bool:
    """Return whether segments of different labels may overlap."""
    return header.task in (OBJECT_DETECTION, AUDIO_TAGGING)


def heads_of(header: Header) -> dict[str | None, Head]:
    """Return the heads by the ``model`` of their records; the key is None for a single head."""
    if header.heads is not None:
        return {head.model: head for head in header.heads}
    timeline = header.options.get("timeline") or {}
    drawn = timeline if isinstance(timeline, dict) else vars(timeline)  # read, or of this run
    names = ("thresholds", "low", "smooth_s", "presence_s")
    about = (header.model, header.weights_sha256, header.labels, header.background)
    alone = Head(
        *about,
        header.delay_s,
        drawn.get("threshold", THRESHOLD),
        **{name: drawn[name] for name in names if name in drawn},
        temperature=header.options.get("temperature", 1.0),
        familiar=header.options.get("familiar"),
    )
    return {None: alone}
