"""The options of a run: one frozen dataclass of all groups, made by the command line or Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costream.core.places import KINDS, Place, check_places
from costream.options.flags import declared_flags
from costream.options.groups import (
    AlertFlags,
    BatchFlags,
    GeneralFlags,
    InputFlags,
    LiveFlags,
    ModelFlags,
    MonitoringFlags,
    ObjectFlags,
    OutputFlags,
    SoundFlags,
    TimelineFlags,
    WorkerFlags,
)

if TYPE_CHECKING:
    from costream.weights_io.card import Card, Timeline


@dataclass(frozen=True)
class Options(
    ModelFlags,
    InputFlags,
    SoundFlags,
    LiveFlags,
    TimelineFlags,
    ObjectFlags,
    AlertFlags,
    OutputFlags,
    MonitoringFlags,
    WorkerFlags,
    BatchFlags,
    GeneralFlags,
):
    """The options of a run; None: the model card, or the source, decides.

    Fields of options that a command does not have keep their defaults. A function that needs one
    group takes that group. ``--mic`` becomes a source, and ``--duration`` the end.
    """

    sources: tuple[str, ...] = ()  # files, folders, URLs, cameras, lists: the arguments

    @property
    def verbosity(self) -> int:
        """-1: errors only; 0: warnings too; 1: settings too; 2: everything."""
        return -1 if self.quiet else self.verbose

    @property
    def places(self) -> tuple[Place, ...]:
        """Zones, lines and masks. UsageError when two have one name."""
        return check_places((*self.zone, *self.line, *self.mask), "--zone, --line, --mask")

    @property
    def output_folder(self) -> Path | None:
        """The folder of ``--output``; None for standard output, too."""
        return None if self.output in (None, "-") else Path(str(self.output))

    @property
    def snapshot_folder(self) -> Path | None:
        """The folder of ``--snapshots``."""
        return None if self.snapshots is None else Path(self.snapshots)

    def with_places(self, places: Iterable[Place]) -> Options:
        """Return these options with other zones, lines and masks."""
        by = {kind: tuple(place for place in places if place.kind == kind) for kind in KINDS}
        return replace(self, zone=by["zone"], line=by["line"], mask=by["mask"])

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that a run's header has in addition to the range and the timeline."""
        values: dict[str, Any] = {
            "dtype": self.dtype,
            "channel": self.channel,
            "input_fps": self.input_hz,
            "stream": self.stream,
            "tokens": self.tokens,
            "policy": self.policy,
            "budget": self.budget and self.budget.text,
            "track": self.track or None,
            "places": self.places or None,
            "decoder": "fast" if self.decoder == "fast" else None,  # the others: same pixels
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that change the results for an input; a batch resumes if they are the same.

        Each declares its part in it, see ``Flag.identity``.
        """
        recorded = self.recorded
        values: dict[str, Any] = {}
        for declared in declared_flags(type(self)):
            name, identity = declared.name, declared.flag.identity
            if identity == "never" or not {"detect", "listen"} & {*declared.commands}:
                continue
            is_recorded = name in ("budget", "decoder")
            value = recorded.get(name) if is_recorded else getattr(self, name)
            if value or identity == "always":
                values[name] = value
        return values

    def timeline(self, card: Card, length_s: float | None = None) -> Timeline:
        """Return the card's timeline with this run's overrides.

        ``length_s``: length of the data to be processed; None: unknown.
        """
        timeline = card.timeline
        if self.threshold is not None:
            # The card's lower bound belongs to the card's threshold.
            timeline = replace(
                timeline, threshold=self.threshold, low=None, thresholds={}, short=None
            )
        timeline = timeline.of_length(length_s)
        if self.min_length_s is not None:
            timeline = replace(timeline, min_length_s=self.min_length_s)
        if self.min_gap_s is not None:
            timeline = replace(timeline, min_gap_s=self.min_gap_s)
        return timeline
