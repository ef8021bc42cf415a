"""Interfaces of sinks, which receive the records of a run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from costream.records import Header, Picture, Record, Summary


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
