"""The seam between a run and its results."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from costream.records import OBJECT_DETECTION, Head, Header, Picture, Record, Summary


class Sink(Protocol):
    """Takes the records of one run over one source: ``open``, ``write`` ..., ``close``.

    ``close`` is always called once after a successful ``open``, also when the run was
    interrupted (``summary.complete`` is then False), and leaves valid, finished files.
    """

    def open(self, header: Header) -> None: ...  # noqa: D102

    def write(self, record: Record) -> None: ...  # noqa: D102

    def close(self, summary: Summary) -> None: ...  # noqa: D102


@runtime_checkable
class PictureSink(Sink, Protocol):
    """A sink that also draws: ``draw`` comes after what a step has written."""

    def draw(self, picture: Picture) -> None: ...  # noqa: D102


def finds_objects(header: Header) -> bool:
    """Say whether a run writes Objects and no Prediction; its segments may overlap then."""
    return header.task == OBJECT_DETECTION


def heads_of(header: Header) -> dict[str | None, Head]:
    """Give the heads by what their records are marked with; None where there is one."""
    if header.heads is not None:
        return {head.model: head for head in header.heads}
    timeline = header.options.get("timeline")
    thresholds = (getattr(timeline, "threshold", 0.5), getattr(timeline, "thresholds", {}))
    about = (header.model, header.weights_sha256, header.labels, header.background)
    return {None: Head(*about, header.delay_s, *thresholds)}
