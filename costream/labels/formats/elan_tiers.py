"""Labels from ELAN annotation files (EAF)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text
from costream.labels.recording import Label

Element = ElementTree.Element


def read_elan(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the annotations of all top-level tiers as one timeline.

    A part is a tier; tiers with a parent are skipped unless requested. Raises UsageError for a
    file that is not XML, declares entities or has times in frames.
    """
    root = read_xml(path)
    if root.tag != "ANNOTATION_DOCUMENT":
        raise NoLabelsError("no ELAN annotations", where=path)
    head = root.find("HEADER")
    media = [] if head is None else head.findall("MEDIA_DESCRIPTOR")
    units = "milliseconds" if head is None else head.get("TIME_UNITS", "milliseconds")
    if units != "milliseconds":
        raise UsageError(f"times in {units}", where=path, hint="only milliseconds are supported")
    # The offset of the annotations' time 0 in the recording, if it was moved.
    origin_ms = _number(path, media[0].get("TIME_ORIGIN") or "0") if media else 0.0
    times = {
        slot.get("TIME_SLOT_ID", ""): _number(path, value)
        for slot in root.iter("TIME_SLOT")
        if (value := slot.get("TIME_VALUE")) is not None  # others are in between
    }
    labels: list[Label] = []
    for tier in root.findall("TIER"):
        name = tier.get("TIER_ID", "")
        if tier.get("PARENT_REF") is not None and collector.part is None:
            collector.warn("tiers with a parent tier, left out", f"{path}, tier {name!r}")
        elif collector.wants(name):
            labels += _labels(path, tier, times, origin_ms, collector)
    yield LabelTrack(path, tuple(_names(media)), tuple(labels), has_parts=True)


def read_xml(path: Path) -> Element:
    """Return the root of an XML file; UsageError for another file, or one that has entities."""
    text = read_text(path)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise UsageError("declares XML entities, which annotations never contain", where=path)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise UsageError(f"cannot be read as XML ({error})", where=path) from error
    return root


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"not a number of milliseconds: {text!r}", where=path) from None


def _labels(
    path: Path, tier: Element, times: dict[str, float], origin_ms: float, collector: LabelCollector
) -> Iterator[Label]:
    for note in tier.iter("ALIGNABLE_ANNOTATION"):
        spot = f"tier {tier.get('TIER_ID')!r}, annotation {note.get('ANNOTATION_ID')!r}"
        start_ms, end_ms = (times.get(note.get(f"TIME_SLOT_REF{k}", "")) for k in (1, 2))
        if start_ms is None or end_ms is None:
            collector.lose(path, spot, "not aligned: it has no start or no end")
            continue
        text = note.findtext("ANNOTATION_VALUE") or ""
        start_s, end_s = ((ms + origin_ms) / 1000 for ms in (start_ms, end_ms))
        yield from collector.label(path, spot, start_s, end_s, " ".join(text.split()))


def _names(media: list[Element]) -> Iterator[str]:
    """Yield the media names as written by ELAN and as written by other tools (%-escaped)."""
    for descriptor in media:
        url = descriptor.get("MEDIA_URL") or descriptor.get("RELATIVE_MEDIA_URL") or ""
        name = url.removeprefix("file://") if url.startswith("file:") else url
        if name:
            yield from dict.fromkeys((name, unquote(name)))
