"""Interfaces of sinks, which receive the records of a run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from costream.records import OBJECT_DETECTION, Head, Header, Picture, Record, Summary


class Sink(Protocol):
    """Receiver of the records of one run over one source: ``open``, ``write`` ..., ``close``.

    ``close`` is always called once after a successful ``open``, also when the run was
    interrupted (``summary.complete`` is then False), and leaves valid, finished files.
    """

    def open(self, header: Header) -> None: ...  # noqa: D102

    def write(self, record: Record) -> None: ...  # noqa: D102

    def close(self, summary: Summary) -> None: ...  # noqa: D102


@runtime_checkable
class PictureSink(Sink, Protocol):
    """A sink that also draws: ``draw`` is called after the records of a step."""

    def draw(self, picture: Picture) -> None: ...  # noqa: D102


def finds_objects(header: Header) -> bool:
    """Return whether a run writes Objects instead of Prediction; its segments may then overlap."""
    return header.task == OBJECT_DETECTION


def heads_of(header: Header) -> dict[str | None, Head]:
    """Return the heads by the ``model`` of their records; the key is None for a single head."""
    if header.heads is not None:
        return {head.model: head for head in header.heads}
    timeline = header.options.get("timeline")
    thresholds = (getattr(timeline, "threshold", 0.5), getattr(timeline, "thresholds", {}))
    about = (header.model, header.weights_sha256, header.labels, header.background)
    return {None: Head(*about, header.delay_s, *thresholds)}
