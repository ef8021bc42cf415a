"""Metrics of stored results."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from costream.core.errors import SourceError, UsageError
from costream.core.formatting import counted
from costream.core.records import Header, Segment, Summary
from costream.core.spelling import composed, folded, stored_path
from costream.evaluation.evaluate_settings import (
    EvaluateSettings,
)
from costream.evaluation.predictions import ModelPredictions, PredictionCollector
from costream.evaluation.recordings import OfPerson, RecordingEvaluator, T, by_person
from costream.labels.collector import shortened
from costream.labels.examples import normalise_label
from costream.labels.label_files import recording_name
from costream.labels.reading import read_recordings
from costream.labels.recording import BACKGROUNDS, SILENCE, Recording
from costream.sinks.result_reader import NotAResultError, Totals, UnreadableRecord, runs

log = logging.getLogger("costream")


def result_scores(settings: EvaluateSettings) -> dict[str, Any]:
    """Return the metrics of results as JSON values.

    .jsonl and .json files with all scores have frame metrics too, other timelines only segment
    metrics. Raises UsageError for unusable results, SourceError for unreadable ones.
    """
    folder = Path(stored_path(str(settings.results or Path())))
    if not folder.exists():
        raise UsageError("no such file or folder of results", where=folder)
    truth = read_recordings(settings.data, settings.labels, settings.group, settings.columns)
    found = dict(_results(folder))
    if found:
        header = _header(found, folder)
        predictions: dict[str, OfPerson] = {
            name: collector.predictions for name, collector in found.items()
        }
        labels, background, model = header.labels, header.background, header.model
        told_apart = header.persons is not None
    else:
        timelines = _timelines(folder)
        labels = _labels(timelines, truth)
        nothing = [name for name in labels if normalise_label(name) in BACKGROUNDS]
        silence = [name for name in labels if normalise_label(name) == SILENCE]
        background = next(iter((*silence, *nothing)), None)
        labels = tuple(name for name in labels if name == background or name not in nothing)
        predictions = {
            name: partial(_silent, segments, len(labels)) for name, segments in timelines.items()
        }
        model = folder.resolve().name
        told_apart = any(s.person is not None for each in timelines.values() for s in each)
    evaluator = RecordingEvaluator(settings, labels, background, model)
    matched = list(paired(evaluator.fit(truth), predictions))
    pairs = [p for each in matched for p in by_person(*each, told_apart=told_apart)]
    if not pairs:
        raise UsageError(
            f"no result belongs to a recording of {settings.labels}",
            where=folder,
            hint="results are matched by the name of the recording",
        )
    scores = evaluator.scores(pairs)
    if scores["frames"] is None:
        log.warning("no frame metrics: these results lack the scores; run with -f jsonl --scores")
    return {"model": model, **scores}


def paired(
    recordings: Sequence[Recording], predictions: Mapping[str, T]
) -> Iterator[tuple[Recording, T]]:
    """Yield each recording with its predictions, and warn of those without a counterpart.

    ``predictions``: by the recording's name relative to the folder of results. A recording is
    matched by its path, its name, the video in its file, or these without suffix; the first
    that matches exactly one result counts.
    """
    alike: dict[str, list[str]] = {}
    for name in predictions:
        for alias in dict.fromkeys(_aliases(name)):
            alike.setdefault(alias, []).append(name)
    unpaired = set(predictions)
    unmatched: list[str] = []
    for recording in recordings:
        fitting = (alike[a] for a in _aliases(recording.source) if a in alike)
        found = next((names[0] for names in fitting if len(names) == 1), None)
        if found is None:
            unmatched.append(recording.source)
        else:
            unpaired.discard(found)
            yield recording, predictions[found]
    for what, missing in (("no results of", unmatched), ("no labels of", sorted(unpaired))):
        if missing:
            log.warning("%s %s: left out", what, shortened(missing, 5))


def _aliases(name: str) -> list[str]:
    """Return the possible names of a recording, the most specific first; without case last."""
    exact = _exact_aliases(composed(name))
    return [*exact, *(f"\0{folded(alias)}" for alias in exact)]  # no name holds a zero


def _exact_aliases(name: str) -> list[str]:
    path = PurePosixPath(name.replace("\\", "/"))
    paths = ["/".join(path.parts[k:]) for k in range(len(path.parts))]
    file, _, video = path.name.partition("#")
    last = video or file
    return [*paths, last, PurePosixPath(last).stem]


def _results(folder: Path) -> Iterator[tuple[str, PredictionCollector]]:
    """Yield the runs in .jsonl and .json files, with the name of their recording."""
    for path in _files(folder):
        if path.suffix.lower() not in (".jsonl", ".json"):
            continue
        try:
            collectors = [_collect(contents, path) for contents in runs(path)]
        except NotAResultError:
            continue
        place = path.relative_to(folder).parent if folder.is_dir() else Path()
        name = (place / recording_name(path)).as_posix()
        for collector in collectors:  # several: runs written to one pipe
            source = "" if collector.header is None else collector.header.source
            yield name if len(collectors) == 1 else source, collector


def _collect(contents: Iterable[Any], path: Path) -> PredictionCollector:
    collector, damages = PredictionCollector(), list[str]()
    for content in contents:
        if isinstance(content, Header):
            collector.open(content)
        elif isinstance(content, Summary):
            collector.close(content)
            if not content.complete:
                what = "%s: the run ended after %.1f s; segments after that count as missed"
                log.warning(what, path, content.media_s)
        elif isinstance(content, UnreadableRecord):
            damages.append(content.reason)
        elif not isinstance(content, Totals):
            collector.write(content)
    if damages:
        more = f", and {counted(len(damages) - 1, 'record')} more" if len(damages) > 1 else ""
        log.warning("%s: damaged (%s%s)", path, damages[0], more)
    if collector.header is None:
        raise SourceError("the results have no header", where=path)
    return collector


def _header(found: dict[str, PredictionCollector], folder: Path) -> Header:
    """Return the common header of all results. UsageError if they are of several models."""
    headers = [collector.header for collector in found.values() if collector.header is not None]
    first = headers[0]
    if first.heads is not None:
        raise UsageError("these results come from several models at once", where=folder)
    for other in headers:
        if (other.labels, other.background) != (first.labels, first.background):
            raise UsageError(
                f"results of models with different labels ({first.model}, {other.model})",
                where=folder,
            )
    return first


def _timelines(folder: Path) -> dict[str, tuple[Segment, ...]]:
    """Return the segments of timelines of any format, without scores, by recording name."""
    out: dict[str, tuple[Segment, ...]] = {}
    for recording in read_recordings(None, folder):
        end_s = max((one.end_s or one.start_s for one in recording.labels), default=0.0)
        out[recording.source] = tuple(
            Segment(
                one.start_s,
                end_s if one.end_s is None else one.end_s,
                one.label,
                float("nan"),
                person=one.person,
            )
            for one in recording.labels
        )
    return out


def _labels(
    timelines: Mapping[str, Sequence[Segment]], truth: Sequence[Recording]
) -> tuple[str, ...]:
    """Return all labels in the spelling of the timelines, with those that occur in labels only."""
    labels = {
        normalise_label(s.label): s.label for segments in timelines.values() for s in segments
    }
    for recording in truth:
        for one in recording.labels:
            labels.setdefault(normalise_label(one.label), one.label)
    return tuple(labels.values())


def _silent(segments: tuple[Segment, ...], width: int, person: int | None) -> ModelPredictions:
    """Return the predictions of a timeline without scores, of one person if one is named."""
    if person is not None:
        segments = tuple(s for s in segments if s.person == person)
    nothing = np.zeros(0)
    steps = np.zeros(0, np.int64)
    return ModelPredictions(nothing, np.zeros((0, width)), steps, segments, 0.0, 0.0, 0)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else [folder]
