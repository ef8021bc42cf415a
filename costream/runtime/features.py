"""``costream features``: write a frontend's features of video or audio to files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from costream.core.clock import Tick, format_time, resample, tick_per_item
from costream.core.errors import ExitCode, SourceError, UsageError
from costream.core.formatting import print_path
from costream.core.records import Gap
from costream.models.compatibility import check_flow, source_kind, source_notes
from costream.models.streaming import StreamingModel
from costream.options.options import Options
from costream.runtime.logs import logging_to
from costream.runtime.model_loading import load
from costream.runtime.options import source_options
from costream.runtime.stop import StopHandler
from costream.sinks.atomic import BinaryFile, exists_error
from costream.sinks.registry import check_outputs
from costream.sources.uris import expand, name_of, open_source, sniff

log = logging.getLogger("costream")

FEATURE_SUFFIX = ".npz"


@dataclass(frozen=True)
class FeatureTokens:
    """The T feature tokens of one source."""

    rows: npt.NDArray[np.float32]  # [T, D]
    times: npt.NDArray[np.float64]  # [T], seconds
    complete: bool  # False: the source could not be read to its end


def features(options: Options) -> ExitCode:
    """Write a feature file for each source, print its name, and return the overall exit code.

    Nothing is written for a source that was stopped. Raises UsageError for a model without video
    or audio features and for files that exist already, ModelError, OutputError.
    """
    with StopHandler() as stop, logging_to(options.verbosity, "auto", None):
        targets = _targets(options)
        model = _load(options)
        failed: list[ExitCode] = []
        for uri, target in targets.items():
            try:
                tokens = read_features(uri, model, options, stop)
            except SourceError as error:
                if stop.exit_code is not None:
                    return stop.exit_code
                log.error("%s", error)
                failed.append(error.exit_code)
                continue
            if stop.exit_code is not None:
                return stop.exit_code
            _write(target, tokens, model, options)
            print_path(target)
            if not tokens.complete:
                failed.append(ExitCode.PARTIAL)
        if len(failed) == len(targets) == 1:
            return failed[0]
        return ExitCode.PARTIAL if failed else ExitCode.OK


def read_features(
    uri: str, model: StreamingModel, options: Options, stop: StopHandler
) -> FeatureTokens:
    """Return the tokens of a source. SourceError when it cannot be read or is too short."""
    card = model.info.card
    rate_hz = options.rate_hz or card.rate_hz
    reading = source_options(options, model, ())
    kind, wanted = sniff(uri, reading), source_kind(model.frontend)
    if kind != wanted:
        raise SourceError(f"not {wanted}, which {card.name} takes", where=uri)
    source = open_source(uri, reading)
    rows: list[npt.NDArray[np.float32]] = []
    times: list[float] = []
    complete, state = True, model.init_state()
    try:
        with stop.while_running(source.stop):
            for what, note in source_notes(model.frontend, source.open()).items():
                log.warning("%s: %s: %s", uri, what, note)
            items = source.items()
            ticks = resample(items, rate_hz, card.gap_tolerance_s, model.info.frames)
            for tick in tick_per_item(items) if kind == "audio" else ticks:
                if isinstance(tick, Tick):
                    with torch.inference_mode():
                        rows.append(model.see([tick.item], state).float().cpu().numpy())
                    times.append(tick.time_s)
                elif isinstance(tick, Gap):
                    start_s, end_s = format_time(tick.start_s), format_time(tick.end_s)
                    log.warning("%s: no rows from %s to %s (%s)", uri, start_s, end_s, tick.reason)
                    state.reset([0])
                else:
                    log.warning("%s: %s", uri, tick.message)
                    complete = complete and not tick.fatal
    finally:
        source.close()
    if not rows:
        raise SourceError("too short for a single row", where=uri)
    return FeatureTokens(np.concatenate(rows), np.array(times), complete)


def _targets(options: Options) -> dict[str, Path]:
    """Return the file for each source.

    UsageError when one exists or cannot be written, or two are the same.
    """
    sources = [uri for argument in options.sources for uri in expand(argument)]
    output = Path(str(options.output))  # a file for one source, else a folder
    if output.suffix in (".npy", ".pkl", ".pickle") and not output.is_dir():
        raise UsageError(f"a feature file ends in {FEATURE_SUFFIX}", where=f"-o {output}")
    if output.suffix == FEATURE_SUFFIX:
        if len(sources) > 1:
            raise UsageError("several sources", where=output, hint="give a folder: -o FOLDER")
        targets = {sources[0]: output}
    else:
        targets = {uri: output / f"{name_of(uri)}{FEATURE_SUFFIX}" for uri in sources}
    if len(set(targets.values())) < len(sources):
        raise UsageError("several sources would write the same file", where=output)
    for folder in {target.parent for target in targets.values()}:
        check_outputs((), folder, "", overwrite=True)
    for target in targets.values():
        if target.exists() and not options.overwrite:
            raise exists_error(target, "use --overwrite")
    return targets


def _load(options: Options) -> StreamingModel:
    """Load the model. UsageError when its frontend takes neither video nor audio."""
    model = load(options)
    name, kinds = model.info.card.name, ("video", "audio")
    if not isinstance(model, StreamingModel) or source_kind(model.frontend) not in kinds:
        raise UsageError(f"{name} computes no features from video or audio", where="--model")
    if model.info.sound is not None and options.rate_hz is not None:
        raise UsageError(f"the steps of {name} are blocks of audio", where="--fps")
    check_flow(model.info.card, model.frontend)
    return model


def _write(target: Path, tokens: FeatureTokens, model: StreamingModel, options: Options) -> None:
    """Write rows under the names that the feature reader expects, with times and rate."""
    parts: dict[str, int] = getattr(model.frontend, "parts", {"features": tokens.rows.shape[1]})
    ends = np.cumsum(list(parts.values()))
    arrays: dict[str, Any] = dict(zip(parts, np.split(tokens.rows, ends[:-1], 1), strict=True))
    arrays |= {"times": tokens.times, "rate_hz": options.rate_hz or model.info.card.rate_hz}
    file = BinaryFile(target, overwrite=options.overwrite)
    file.open()
    content = file.file
    if content is not None:
        file.attempt(lambda: np.savez(content, **arrays))
    file.finish()
    log.info("%s: %d rows of %d values", target, *tokens.rows.shape)
