"""What a file is taken for: ``costream doctor FILE``; asks the readers of runs and of labels."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

import numpy as np

from costream.core.errors import CostreamError, SourceError, UsageError, display_name, reason_of
from costream.core.formatting import short_time
from costream.core.records import Fault, SkeletonFrame, SourceInfo
from costream.labels.collector import NoLabelsError, abbreviate
from costream.labels.formats.label_headings import split_columns
from costream.labels.label_files import reader_of
from costream.labels.reading import read_recordings
from costream.labels.recording import Recording
from costream.models.base import SHIPPED
from costream.options.options import Options
from costream.runtime.watch.feed_list import LIST, read_feeds
from costream.sources.base import ConnectionOptions, Source, SourceOptions, first_frame
from costream.sources.media.container import open_container
from costream.sources.media.sound_file import open_sound
from costream.sources.uris import expand, is_feed, is_pipe, open_source, sniff

_PERSONS = 8  # as many are followed
_WEIGHTS = (".safetensors", ".pth", ".pt", ".ckpt", ".tflite", ".onnx")
_REFUSED = "not readable"
_TRIED_HZ = 30.0  # of joints without times and rate
_CONNECT_S = 10.0
_MOST_SHOWN = 20  # recordings of one file


@dataclass
class FileReport:
    """Rows of name and text about one file or recording."""

    file: str
    rows: dict[str, str] = field(default_factory=dict)
    readable: bool = True


def report_files(arguments: Iterable[str], options: SourceOptions) -> Iterator[FileReport]:
    """Yield a report on each file or folder, or on each recording in it, once."""
    seen = set[str]()
    for argument in arguments:
        for report in _reports(argument, options, seen):
            seen.add(report.file)
            yield report


def _reports(argument: str, options: SourceOptions, seen: Container[str]) -> Iterator[FileReport]:
    described = _feed if is_feed(argument) else _feed_list if _is_list(argument) else None
    if described is not None:
        try:
            yield described(argument)
        except CostreamError as error:
            yield _refused(display_name(argument), error)
        return
    labels = None if is_pipe(argument) else _labels(argument, options.columns)
    if labels is not None and (labels.readable or _sniff_kind(argument) != "skeleton"):
        yield labels
        return
    if argument.lower().endswith(_WEIGHTS):
        use = f"costream models show {quote(argument)}, or costream models import {quote(argument)}"
        yield FileReport(argument, {"taken for": "weights of a network", "next": use})
        return
    try:
        uris = [uri for uri in expand(argument) if uri not in seen]
    except CostreamError as error:
        yield _refused(argument, error)
        return
    for uri in uris[:_MOST_SHOWN]:
        try:
            yield _recording(uri, options)
        except CostreamError as error:
            refusal = _refused(uri, error)
            if labels is not None:  # such as a table that could be either
                refusal.rows = {
                    "not readable as labels": labels.rows[_REFUSED],
                    "not readable as joints": refusal.rows[_REFUSED],
                }
            yield refusal
    if len(uris) > _MOST_SHOWN:
        yield FileReport(argument, {"more": f"{len(uris) - _MOST_SHOWN} further recordings"})


def _is_list(argument: str) -> bool:
    return argument.lower().endswith(LIST) and Path(argument).is_file()


def _feed_list(argument: str) -> FileReport:
    """Return a report on a list of feeds, which are not connected."""
    feeds = read_feeds(Options(sources=(argument,)))
    rules = sorted({rule.text for feed in feeds for rule in feed.alerts.on})
    places = [str(place) for feed in feeds for place in feed.places]
    rows = {
        "taken for": "list of feeds",
        "feeds": f"{len(feeds)}: {abbreviate([f'{feed.name} ({feed.shown})' for feed in feeds])}",
        **({"rules": abbreviate(rules)} if rules else {}),
        **({"places": abbreviate(places)} if places else {}),
        "next": f"costream watch {quote(argument)}",
    }
    return FileReport(argument, rows)


def _feed(argument: str) -> FileReport:
    """Return a report on a live feed, by its first frame. SourceError if none arrives in time."""
    connecting = ConnectionOptions(timeout_s=_CONNECT_S, retries=0)
    source = open_source(argument, SourceOptions(connecting=connecting))
    empty = "it sends no picture; if it has sound only: costream watch -m mn04"
    info, frame = first_frame(source, display_name(argument), empty)
    width, height = frame.size or frame.rgb.shape[1::-1]
    rate = f", {info.rate_hz:g} frames a second" if info.rate_hz else ""
    rows = {"taken for": "live feed", "video": f"{width}x{height} pixels{rate}"}
    rows |= _about(info)
    use = f"costream watch {quote(display_name(argument))}"
    return FileReport(display_name(argument), rows | {"next": use})


def _refused(file: str, error: CostreamError) -> FileReport:
    return FileReport(file, {_REFUSED: reason_of(error, file)}, readable=False)


class _Lines(logging.Handler):
    """Collects the lines that readers log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line."""
        self.lines.append(record.getMessage())


def _labels(argument: str, columns: str | None) -> FileReport | None:
    """Return a report on a file with labels; None for other files."""
    path = Path(argument)
    if not path.is_file() or (reader := reader_of(path)) is None:
        return None
    log, lines = logging.getLogger("costream"), _Lines()
    before, log.propagate = log.propagate, False
    log.addHandler(lines)
    try:
        recordings = read_recordings(None, path, None, columns)
    except NoLabelsError:
        return None
    except UsageError as error:
        return _refused(argument, error)
    finally:
        log.removeHandler(lines)
        log.propagate = before
    rows = {"taken for": f"labels ({_words(reader.__module__)})", **_about_labels(recordings)}
    if lines.lines:
        rows["assumed"] = "; ".join(lines.lines)
    rows["next"] = f"costream train NAME --data RECORDINGS --labels {quote(argument)}"
    return FileReport(argument, rows)


def _about_labels(recordings: list[Recording]) -> dict[str, str]:
    labels = [label for recording in recordings for label in recording.labels]
    names = list(dict.fromkeys(label.label for label in labels))
    ends = [label.start_s if label.end_s is None else label.end_s for label in labels]
    rows = {
        "recordings": abbreviate([recording.source for recording in recordings]),
        "labels": f"{len(labels)} of {len(names)} kinds: {abbreviate(names)}",
    }
    if ends:
        begin = short_time(min(label.start_s for label in labels))
        rows["times"] = f"{begin} to {short_time(max(ends))}"
    return rows


def _words(module: str) -> str:
    return module.rpartition(".")[2].replace("_", " ")


def _sniff_kind(path: str) -> str | None:
    """Return the kind of a source; None if it is not one."""
    try:
        return sniff(path)
    except CostreamError:
        return None


def _recording(uri: str, options: SourceOptions) -> FileReport:
    columns = split_columns(options.columns)[1]  # the others are of labels
    options = replace(options, columns=columns, persons=_PERSONS)
    kind = sniff(uri, options)
    if kind == "skeleton":
        return _skeleton(uri, options)
    source = open_source(uri, options)
    if kind in ("video", "audio"):
        return FileReport(uri, _media(uri, source))
    try:
        rows = {"taken for": kind, **_about(source.open())}
    finally:
        source.close()
    return FileReport(uri, rows | _next(kind, uri))


def _about(info: SourceInfo) -> dict[str, str]:
    width = {} if info.width is None else {"values a row": str(info.width)}
    return width | _lasting(info.duration_s, info.assumed)


def _lasting(duration_s: float | None, assumed: Sequence[str]) -> dict[str, str]:
    rows = {} if duration_s is None else {"length": f"{duration_s:.2f} s"}
    return rows | ({"assumed": "; ".join(assumed)} if assumed else {})


def _next(kind: str, uri: str) -> dict[str, str]:
    model = SHIPPED.get(kind)
    return {"next": f"costream detect {quote(uri)} -m {model}"} if model else {}


def _media(uri: str, source: Source) -> dict[str, str]:
    """Return rows on a video or a sound; its streams are described by FFmpeg."""
    try:
        file = open_sound(uri)
        container = file.container
    except SourceError:  # no sound in it
        file, container = None, open_container(uri)
    with container:
        streams = [*container.streams.video, *container.streams.audio]
        named = [s.codec_context.name for s in streams if s.codec_context is not None]
        rows = {"taken for": f"{container.format.long_name} ({', '.join(named)})"}
        has_video = any(s.codec_context is not None for s in container.streams.video)
        begin = container.start_time
        if not named:  # such as subtitles
            source.open()
        sound = file and f"{file.stream.rate} Hz, {file.stream.channels} channel(s)"
    if has_video:
        try:
            info = source.open()
        finally:
            source.close()
        size = f"{info.size[0]}x{info.size[1]} pixels" if info.size else ""
        rate = f"{info.rate_hz:g} frames a second" if info.rate_hz else ""
        rows["video"] = ", ".join(filter(None, (size, rate)))
        rows |= _about(info)
    if file is not None and sound:
        rows["sound"] = sound
        rows |= {} if has_video else _lasting(file.duration_s, file.assumed)
    if begin and begin > 1e6:
        rows["begins at"] = short_time(begin / 1e6)
    command = "detect" if has_video else "listen"
    return rows | {"next": f"costream {command} {quote(uri)}"}


def _skeleton(uri: str, options: SourceOptions) -> FileReport:
    """Return a report on a recording of joints, which is read to its end."""
    try:
        source, missing = open_source(uri, options), ""
        info = source.open()
    except UsageError as error:
        if "--fps" not in str(error) or options.frame_rate_hz is not None:
            raise
        missing = "not in the file: give it with --fps"
        source = open_source(uri, replace(options, frame_rate_hz=_TRIED_HZ))
        info = source.open()
    assumed = list(info.assumed)
    frames = [0, 0]  # all, with somebody
    persons: set[int] = set()
    last_s = 0.0
    try:
        layout = info.joints
        for item in source.items():
            if isinstance(item, Fault):
                assumed.append(item.message)
            elif isinstance(item, SkeletonFrame):
                slots = np.flatnonzero(item.scores.any(axis=1)).tolist()
                frames[0] += 1
                frames[1] += bool(slots)
                persons.update(item.persons[k] for k in slots if item.persons is not None)
                last_s = item.time_s
    finally:
        source.close()
    stated = f"{info.rate_hz:g} frames a second" if info.rate_hz else "by its time stamps"
    names = layout.joints if layout is not None else ()
    rows = {
        "taken for": f"joints of people ({info.format})",
        "frames": f"{frames[0]}, {frames[1]} with somebody",
        "rate": missing or stated,
        **({} if missing else {"length": f"{info.duration_s or last_s:.2f} s"}),
        "persons": str(len(persons)),
        "joints": f"{len(names)} of {info.layout}, {info.axes} coordinates: {abbreviate(names)}",
        **({"assumed": "; ".join(assumed)} if assumed else {}),
    }
    rate_option = " --fps N" if missing else ""
    model = "costgcn" if info.axes == 3 else "costgcn-2d"
    return FileReport(uri, rows | {"next": f"costream detect {quote(uri)} -m {model}{rate_option}"})
