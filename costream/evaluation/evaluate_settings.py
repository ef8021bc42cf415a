"""Settings of ``costream evaluate``, and the model and source options that follow from them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from costream.core.errors import SourceError, UsageError
from costream.labels.formats.label_headings import split_columns
from costream.options.options import Options
from costream.sources.base import SourceOptions
from costream.weights_io.licences import AllowedLicence

if TYPE_CHECKING:
    from costream.models.base import Model
    from costream.models.gated import Choice
    from costream.runtime.stop import StopHandler
    from costream.weights_io.card import Card

log = logging.getLogger("costream")

T = TypeVar("T")
U = TypeVar("U")
GLUE = "glue"  # the protocol of labelled lines


@dataclass(frozen=True)
class EvaluateSettings:
    """The options of ``costream evaluate``."""

    model: str | None
    weights: str | None
    data: Path | None
    labels: Path | None = None
    results: Path | None = None  # of an earlier run, instead of a model
    protocol: str | None = None  # a key of protocols.PROTOCOLS, or GLUE
    tolerance_s: float = 0.0  # accepted error of label times
    tokens: tuple[int | str | None, ...] | None = None  # of objects, a run each; None in it: all
    policy: Choice | None = None  # how a number of tokens is chosen
    group: str | None = None  # table column with the groups of the interval
    rate_hz: float | None = None
    layout: str | None = None
    columns: str | None = None
    joined: int = 0  # examples per concatenated stream; 0: no streams
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    provider: str | None = None  # of ONNX Runtime, for a step in ONNX
    threads: int = 1
    licence: AllowedLicence | None = None  # of the weights; None: any
    png: Path | None = None
    as_json: bool = False
    verbosity: int = 0

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if (self.model is None) == (self.results is None):
            hint = "--model runs a model, --results reads results written earlier"
            raise UsageError("give either a model or results", hint=hint)
        if self.results is not None and self.labels is None:
            raise UsageError("needed to evaluate results", where="--labels")
        if self.model is not None and self.data is None:
            raise UsageError("needed to evaluate a model", where="--data")
        if self.model is not None and "," in self.model:
            raise UsageError(f"{self.model} names several models", hint="name one of them")
        of_rows = self.protocol if self.protocol != GLUE else None
        for name, value in (("--protocol", of_rows), ("--tolerance", self.tolerance_s)):
            if value and self.labels is None:
                raise UsageError("applies to complete recordings: give their --labels", where=name)
        if self.protocol == GLUE and (self.labels is not None or self.png is not None):
            where = "--labels" if self.labels is not None else "--png"
            raise UsageError(f"does not apply to --protocol {GLUE}", where=where)
        if self.png is not None and not self.png.absolute().parent.is_dir():
            raise UsageError("no such folder", where=self.png.parent)

    def check_task(self, *, finds_objects: bool) -> None:
        """Raise UsageError for options that are missing or do not apply to this kind of model."""
        if not finds_objects:
            for name, value in (("--tokens", self.tokens), ("--policy", self.policy)):
                if value is not None:
                    raise UsageError("applies to object detectors only", where=name)
        elif self.labels is None:
            raise UsageError("needed to evaluate an object detector (boxes)", where="--labels")
        elif self.protocol is not None or self.tolerance_s > 0:
            where = "--tolerance" if self.protocol is None else "--protocol"
            raise UsageError("applies to actions and sounds, not to objects", where=where)


def card_of(settings: EvaluateSettings) -> Card:
    """Return the card of the model.

    Raises ModelError if it is missing or damaged, UsageError if its licence is not allowed.
    """
    from costream.models.catalogue import check_licence, find_weights
    from costream.weights_io.file import read_card

    check_licence(str(settings.model), settings.weights, settings.licence)
    return read_card(find_weights(str(settings.model), settings.weights))


def load(settings: EvaluateSettings) -> Model:
    """Prepare PyTorch and return the loaded model. Raises ModelError."""
    from costream.models.catalogue import load_model
    from costream.runtime.torch_setup import prepare_torch

    prepare_torch(settings.threads)
    return load_model(
        str(settings.model),
        weights=settings.weights,
        device=settings.device,
        dtype=settings.dtype,
        provider=settings.provider,
    )


def source_options(settings: EvaluateSettings, model: Model) -> SourceOptions:
    """Return the source options for a model. UsageError for a rate if the model takes audio."""
    from costream.runtime.options import source_options as run_options

    if model.info.sound is not None and settings.rate_hz is not None:
        raise UsageError(f"the steps of {model.info.card.name} are blocks of audio", where="--fps")
    _, columns = split_columns(settings.columns)
    options = Options(rate_hz=settings.rate_hz, layout=settings.layout, columns=columns)
    return replace(run_options(options, model), text="line" if model.info.text else None)


def progress(items: Sequence[Any], title: str) -> Iterable[Any]:
    """Return the items, with a progress bar on stderr if that is a terminal."""
    from tqdm import tqdm

    return tqdm(items, desc=title, file=sys.stderr, disable=None, leave=False)


def readable(
    items: Sequence[T],
    run: Callable[[T], U],
    kind: str,
    data: object,
    stop: StopHandler,
    title: str = "",
) -> Iterator[tuple[T, U]]:
    """Yield each item with the result of running it, under a progress bar, until ``stop``.

    Items that cannot be read are logged and left out. The SourceError of a single item is raised,
    and one that names ``data`` if none can be read. ``kind``: of the items. ``title``: of the bar.
    """
    read = 0
    for item in progress(items, title or f"{kind}s"):
        try:
            result = run(item)
        except SourceError as error:
            if len(items) == 1:
                raise
            log.error("%s", error)
            continue
        if stop.requested:
            return
        read += 1
        yield item, result
    if not read:
        raise SourceError(f"no {kind} can be read", where=data)
