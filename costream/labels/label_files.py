"""Label files of all formats."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError
from costream.labels.formats.annotation_projects import read_cvat
from costream.labels.formats.boris_projects import read_boris
from costream.labels.formats.chapter_lists import read_ffmetadata
from costream.labels.formats.costream_results import read_results
from costream.labels.formats.csv_files import read_table
from costream.labels.formats.editor_timelines import read_edl, read_otio
from costream.labels.formats.elan_tiers import read_elan
from costream.labels.formats.frame_arrays import SETTINGS_FILE, read_arrays
from costream.labels.formats.json_files import read_document
from costream.labels.formats.praat_tiers import read_textgrid
from costream.labels.formats.subtitle_files import read_subtitles
from costream.labels.formats.text_tables import read_rttm, read_text_labels
from costream.sinks.registry import FORMATS

log = logging.getLogger("costream")
LabelReader = Callable[[Path, LabelCollector], Iterator[LabelTrack]]
READERS: dict[str, LabelReader] = {
    ".jsonl": read_results,
    ".json": read_document,
    ".csv": read_table,
    ".tsv": read_table,
    ".txt": read_text_labels,
    ".ann": read_text_labels,  # of sed_eval
    ".srt": read_subtitles,
    ".vtt": read_subtitles,
    ".rttm": read_rttm,
    ".textgrid": read_textgrid,
    ".xml": read_cvat,
    ".boris": read_boris,
    ".ffmetadata": read_ffmetadata,
    ".edl": read_edl,
    ".otio": read_otio,
    ".eaf": read_elan,
    ".npz": read_arrays,
    ".npy": read_arrays,
    ".pickle": read_arrays,
    ".pkl": read_arrays,
}
# What a text begins with, whatever its name. Readers of tables tell these apart.
_CONTENTS: tuple[tuple[str, LabelReader], ...] = (
    (r"WEBVTT", read_subtitles),
    (r"\d+\n\d\d:\d\d:\d\d[,.]\d+ +-->", read_subtitles),
    (r";FFMETADATA", read_ffmetadata),
    (r'(File type = )?"ooTextFile|"Praat chronological', read_textgrid),
    (r"TITLE:[^\n]*\n(FCM:|\s*\d+ )", read_edl),
    (r"SPEAKER [^\n]*( [^\n ]+){8}\n", read_rttm),
    (r"(<\?xml[^>]*>\s*)?<ANNOTATION_DOCUMENT", read_elan),
    (r"(<\?xml[^>]*>\s*)?<annotations>", read_cvat),
    (r"\{[^\n]*\}\n", read_results),
    (r'\{\s*["}]|\[\s*[\[{"\d\]-]', read_document),
)
_CONTENTS_BYTES = 4096
# Files of a run that are not timelines.
_OTHERS = (
    *("predictions.csv", "objects.csv", "compute.csv", "failures.csv", "summary.json"),
    "coco.json",
)
_SUFFIXES = sorted(
    (f".{s}".lower() for f in FORMATS.values() for s in f.files), key=len, reverse=True
)


def read_files(labels: Path, collector: LabelCollector, group: str | None) -> list[LabelTrack]:
    """Return the tracks of a label file, or of all files in a folder and below, in order of names.

    Files in a folder without labels are skipped and reported. Raises UsageError when nothing is
    left, or a single file contains no labels.
    """
    if not labels.exists():
        raise UsageError("no such label file or folder", where=labels)
    if not labels.is_dir():
        return _of_part(_read(labels, collector, group), collector)
    tracks: list[LabelTrack] = []
    for path in _files(labels):
        try:
            tracks += _of_part(_read(path, collector, group), collector)
        except NoLabelsError:
            collector.unlabelled.append(path)
        except UsageError as error:
            collector.error_file(path, error)
    if not tracks:
        collector.raise_errors()
        hint = (
            "supported are tables (CSV, TSV), JSON, JSON lines, SRT, VTT, RTTM, ELAN, Praat,"
            " labels of Audacity and Raven, and more: costream help train"
        )
        raise UsageError("it contains no labels", where=labels, hint=hint)
    return tracks


def recording_name(path: Path) -> str:
    """Return the name of the recording from the name of a label file, without the suffix."""
    for suffix in _SUFFIXES:
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return path.name[: -len(suffix)]
    return path.stem


def _of_part(tracks: Iterator[LabelTrack], collector: LabelCollector) -> list[LabelTrack]:
    """Return the tracks; if a part is requested, only those that distinguish parts."""
    return [track for track in tracks if track.has_parts or collector.part is None]


def _read(path: Path, collector: LabelCollector, group: str | None) -> Iterator[LabelTrack]:
    reader = reader_of(path)
    if reader is None:
        hint = f"supported: {', '.join(READERS)}"
        raise NoLabelsError("not a supported label file", where=path, hint=hint)
    return read_table(path, collector, group) if reader is read_table else reader(path, collector)


def reader_of(path: Path) -> LabelReader | None:
    """Return the reader of a file of labels: by its content, else by its name; None if unknown."""
    by_name = READERS.get(path.suffix.lower())
    if by_name in (read_arrays, read_results):
        return by_name
    try:
        with path.open("rb") as file:
            head = file.read(_CONTENTS_BYTES)
    except OSError:
        return by_name
    text = head.decode(
        "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "ignore"
    )
    text = text.replace("\r\n", "\n").lstrip()
    return next((reader for form, reader in _CONTENTS if re.match(form, text)), by_name)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that may contain labels."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.suffix.lower() in READERS and not _is_other(path.name):
            yield path


def _is_other(name: str) -> bool:
    """Return whether a file's name rules out labels; pickles of features may be very large."""
    if name.endswith((".pickle", ".pkl")):
        return "anno" not in name
    return name == SETTINGS_FILE or f".{name}".endswith(tuple(f".{other}" for other in _OTHERS))
