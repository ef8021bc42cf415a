"""``costream find``: moments in recordings that look like an example.

The rows that a frontend computes from pictures or sound are compared by their cosine. The rows of
a recording are kept in a file in the folder .costream next to it, and computed again when the
recording or the model has changed.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from costream.core.errors import ExitCode, SourceError, UsageError
from costream.core.records import Header, Segment
from costream.core.schema import schema_of
from costream.models.compatibility import source_kind
from costream.models.streaming import StreamingModel
from costream.options.options import Options
from costream.runtime.batch.folders import PRIVATE
from costream.runtime.batch.inputs import collect
from costream.runtime.features import FeatureTokens, read_features
from costream.runtime.logs import logging_to
from costream.runtime.model_loading import load
from costream.runtime.options import source_options
from costream.runtime.stop import StopHandler
from costream.sinks.atomic import replace_file
from costream.sinks.result_reader import NotAResultError, runs
from costream.sources.uris import sniff

log = logging.getLogger("costream")

RATE_HZ = 1.0  # rows a second of video
APART_S = 5.0  # of two moments of a recording that are both listed
Rows = npt.NDArray[np.float32]
_RESULTS = (".jsonl", ".json")


@dataclass(frozen=True)
class Match:
    """A moment of a recording, and how similar it is to the example: a cosine."""

    file: str
    time_s: float
    similarity: float
    labels: tuple[str, ...]  # of the results in which the recording was found, at that time
    moments: int = 2  # rows of the recording; 1: a picture

    def to_json(self) -> dict[str, Any]:
        """Return the match as JSON values."""
        return {
            "file": self.file,
            "time_s": round(self.time_s, 3),
            "similarity": round(self.similarity, 4),
            "labels": list(self.labels),
        }


def match_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a match, as ``Match.to_json`` returns it."""
    schema = schema_of(Match, described=(Match,))
    del schema["$defs"]["Match"]["properties"]["moments"]
    return schema


@dataclass
class Found:
    """The best matches, and what could not be read."""

    matches: list[Match]
    recordings: int
    exit_code: ExitCode


def find(example: str, options: Options, count: int, *, cached: bool = True) -> Found:
    """Return the moments in the recordings of ``options.sources`` that are most like an example.

    ``count``: most matches. ``options.start_s`` and ``end_s`` are the part of the example. Sources
    are recordings, folders of them, and results, whose recordings are searched. ``cached``: whether
    rows are kept next to recordings. Raises UsageError for a model without rows, SourceError if the
    example or all recordings cannot be read, ModelError.
    """
    with StopHandler() as stop, logging_to(options.verbosity, "auto", None):
        model = _load(options)
        if options.rate_hz is None and model.info.sound is None:
            options = replace(options, rate_hz=RATE_HZ)
        asked = _unit(read_features(example, model, options, stop).rows)
        everywhere = replace(options, start_s=0.0, end_s=None)
        index = _Index(model, everywhere, stop, cached)
        labelled = dict(_results(options.sources))
        paths = dict.fromkeys([*_recordings(options.sources), *labelled])
        files = [path for path in paths if index.takes(path) and not _same(path, example)]
        matches: list[Match] = []
        read, failed = 0, 0
        for path in tqdm(files, "reading", file=sys.stderr, disable=None, leave=False):
            try:
                tokens = index.rows(path)
            except SourceError as error:
                if stop.exit_code is None:
                    log.error("%s", error)
                    failed += 1
                    continue
            if stop.exit_code is not None:
                return Found([], read, stop.exit_code)
            read += 1
            failed += not tokens.complete
            matches += _matches(path, tokens, asked, labelled.get(path, ()), count)
    if not read:
        what = "no recording could be read" if failed else f"there is no {index.kind} here"
        raise SourceError(what, where=", ".join(options.sources))
    matches.sort(key=lambda match: -match.similarity)
    return Found(matches[:count], read, ExitCode.PARTIAL if failed else ExitCode.OK)


def _load(options: Options) -> StreamingModel:
    model = load(options)
    name = model.info.card.name
    kinds = ("video", "audio")
    if not isinstance(model, StreamingModel) or source_kind(model.frontend) not in kinds:
        raise UsageError(f"{name} has no features of video or audio", where="--model")
    if not isinstance(getattr(model.frontend, "token_width", None), int):
        raise UsageError(f"the frontend of {name} has no features", where="--model")
    if options.rate_hz is not None and model.info.sound is not None:
        raise UsageError(f"the steps of {name} are blocks of audio", where="--fps")
    return model


class _Index:
    """Rows of recordings, computed or read from the files next to them."""

    def __init__(
        self, model: StreamingModel, options: Options, stop: StopHandler, cached: bool
    ) -> None:
        self._model, self._options, self._stop, self._cached = model, options, stop, cached
        self._reading = source_options(options, model, ())
        self.kind = source_kind(model.frontend)
        self._told = False

    def takes(self, path: str) -> bool:
        """Return whether a path is a recording of the model's kind, judged by its first bytes.

        In folders, files with the suffix of text, documents or programs are none.
        """
        named = path in map(_shown, map(os.path.abspath, self._options.sources))
        family = (guess_type(path)[0] or "").partition("/")[0]
        if not named and family in ("text", "application"):
            return False
        try:
            return sniff(path, self._reading) == self.kind
        except SourceError as error:
            log.log(logging.WARNING if named else logging.INFO, "%s", error)
            return False

    def rows(self, path: str) -> FeatureTokens:
        """Return the rows of a recording. SourceError if it cannot be read."""
        state = os.stat(path)
        rate_hz = self._options.rate_hz or self._model.info.card.rate_hz
        weights = self._model.info.weights_sha256
        identity = json.dumps([state.st_size, state.st_mtime_ns, weights, rate_hz])
        digest = sha256(f"{weights} {rate_hz}".encode()).hexdigest()[:12]
        file = Path(path).parent / PRIVATE / "features" / f"{Path(path).name}.{digest}.npz"
        tokens = _read(file, identity) if self._cached else None
        if tokens is None:
            tokens = read_features(path, self._model, self._options, self._stop)
            if self._cached and tokens.complete and self._stop.exit_code is None:
                self._keep(file, tokens, identity)
        return tokens

    def _keep(self, file: Path, tokens: FeatureTokens, identity: str) -> None:
        content = io.BytesIO()
        rows = tokens.rows.astype(np.float16)
        np.savez(content, rows=rows, times=tokens.times, identity=np.array(identity))
        try:
            replace_file(file, content.getvalue())
        except OSError as error:
            if not self._told:
                log.warning("features are not kept: %s: %s", file.parent, error.strerror)
            self._told = True


def _read(file: Path, identity: str) -> FeatureTokens | None:
    """Return the rows in a file; None if there are none, or of another recording or model."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["identity"]) != identity:
                return None
            return FeatureTokens(stored["rows"].astype(np.float32), stored["times"], True)
    except (OSError, ValueError, KeyError, EOFError):  # missing or damaged
        return None


def _matches(
    path: str, tokens: FeatureTokens, asked: Rows, segments: Sequence[Segment], count: int
) -> Iterator[Match]:
    """Yield the best moments of a recording, those near a better one left out."""
    cosines = (_unit(tokens.rows) @ asked.T).max(1)
    chosen: list[float] = []
    for k in np.argsort(-cosines, kind="stable"):
        time_s = float(tokens.times[k])
        if len(chosen) == count:
            return
        if all(abs(time_s - other) >= APART_S for other in chosen):
            chosen.append(time_s)
            names = [s.label for s in segments if s.start_s <= time_s < s.end_s]
            labels = tuple(dict.fromkeys(names))
            yield Match(path, time_s, float(cosines[k]), labels, len(cosines))


def _unit(rows: Rows) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Rows = rows / np.maximum(lengths, 1e-9)
    return unit


def _recordings(sources: Sequence[str]) -> list[str]:
    """Return the recordings that arguments name, folders searched."""
    items = collect(sources, Path(PRIVATE), stdin=None).items
    return [_shown(item.uri) for item in items if item.refusal is None]


def _results(sources: Sequence[str]) -> Iterator[tuple[str, list[Segment]]]:
    """Yield the recordings of results among the arguments and in their folders, and segments."""
    for source in map(Path, sources):
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        for file in files:
            if file.suffix in _RESULTS and file.is_file():
                yield from _runs(file)


def _runs(file: Path) -> Iterator[tuple[str, list[Segment]]]:
    try:
        for run in runs(file):
            contents = list(run)
            headers = [c for c in contents if isinstance(c, Header)]
            if not headers:
                continue
            if os.path.isfile(headers[0].source):
                segments = [c for c in contents if isinstance(c, Segment)]
                yield _shown(os.path.abspath(headers[0].source)), segments
            else:
                log.warning("%s: its recording %s is not here", file, headers[0].source)
    except NotAResultError:
        return
    except SourceError as error:
        log.info("%s", error)


def _shown(path: str) -> str:
    """Return a path relative to the working folder, if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _same(path: str, example: str) -> bool:
    try:
        return os.path.samefile(path, example)
    except OSError:
        return False
