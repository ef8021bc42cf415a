"""Reading of a user's examples with the sources of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from costream.core.errors import CostreamError, SourceError, UsageError
from costream.core.records import Data, Fault, Gap, Item
from costream.labels.collector import listed_errors
from costream.labels.examples import Example, located
from costream.models.compatibility import check_source
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.weights_io.card import Card

log = logging.getLogger("costream")

MIN_STEPS = 4  # least number of steps of an example


def check_examples(
    examples: Sequence[Example], card: Card, frontend: Any, options: SourceOptions
) -> None:
    """Open the recordings of examples, and raise an error that names all that cannot be used.

    Raises what ``open_example`` raises if it is only one.
    """
    failed, first = list[CostreamError](), dict[str, Example]()
    for example in examples:
        first.setdefault(example.source, example)
    for example in first.values():
        try:
            with open_example(example, card, frontend, options):
                pass
        except (SourceError, UsageError) as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        listed = listed_errors([str(error) for error in failed])
        message = f"{len(failed)} recordings cannot be used: {listed}"
        unreadable = any(isinstance(error, SourceError) for error in failed)
        raise SourceError(message) if unreadable else UsageError(message)


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
