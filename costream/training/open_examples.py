"""Reading of a user's examples with the sources of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from costream.core.errors import CostreamError, SourceError, UsageError
from costream.core.records import Data, Fault, Gap, Item
from costream.labels.collector import shortened
from costream.labels.examples import Example, located
from costream.models.compatibility import check_source
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.card import Card

log = logging.getLogger("costream")

MIN_STEPS = 4  # least number of steps of an example
_NAMED = 5  # examples that cannot be used
T = TypeVar("T")
Result = TypeVar("Result")


def check_examples(
    examples: Sequence[Example], card: Card, frontend: Any, options: SourceOptions
) -> None:
    """Open the recordings of examples, and raise an error about all that cannot be used.

    Raises what ``open_example`` raises if it is only one.
    """
    first = dict[str, Example]()
    for example in examples:
        first.setdefault(example.source, example)

    def check(example: Example) -> None:
        with open_example(example, card, frontend, options):
            pass

    of_each(first.values(), check, "recordings")


def of_each(
    items: Iterable[T], function: Callable[[T], Result], what: str = "examples"
) -> list[Result]:
    """Return what a function returns of each item.

    All are tried. Raises what it raises, SourceError or UsageError, if one of ``what`` cannot be
    used, and one error that counts them and names the first five if there are several.
    """
    out, failed = list[Result](), dict[str, CostreamError]()
    for item in items:
        try:
            out.append(function(item))
        except (SourceError, UsageError) as error:
            failed.setdefault(str(error), error)
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        listed = shortened(list(failed), _NAMED, " (and {} more)", "; ")
        message = f"{len(failed)} {what} cannot be used: {listed}"
        unreadable = any(isinstance(error, SourceError) for error in failed.values())
        raise SourceError(message) if unreadable else UsageError(message)
    return out


@contextmanager
def open_example(
    example: Example, card: Card, frontend: Any, options: SourceOptions
) -> Iterator[Iterator[Data | Gap]]:
    """Open an example, which must be a recording, and provide its items; faults are logged.

    UsageError for features; SourceError, naming the example, if it cannot be read or does not fit
    the model.
    """
    start_s, end_s = example.start_s, example.end_s
    # The rate is that of features, which are refused below.
    part = replace(options, start_s=start_s, end_s=end_s, rate_hz=card.rate_hz)
    source = open_source(example.source, part)
    try:
        info = source.open()
        if info.kind == "features":
            raise UsageError(
                "training takes recordings, not features",
                where=example.where,
                hint="give the recordings themselves",
            )
        check_source(card, frontend, info)
        for line in info.assumed:
            log.warning("%s: %s", example.where, line)
        yield _without_faults(source.items(), example, info.silent)
    except SourceError as error:
        raise located(error, example) from error
    finally:
        source.close()


def _without_faults(
    items: Iterator[Item], example: Example, silent: str | None
) -> Iterator[Data | Gap]:
    if silent:
        log.warning("%s: %s; training on its frames only", example.where, silent)
    for item in items:
        if isinstance(item, Fault):
            log.warning("%s: %s", example.where, item.message)
        else:
            yield item
