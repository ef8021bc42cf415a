"""The header record of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from costream.core.clock import utc
from costream.core.commit import code_version
from costream.core.records import Head, Header, SourceInfo
from costream.models.base import Model, ModelHead
from costream.options.options import Options
from costream.runtime.budget import chooses
from costream.weights_io.card import UNTRAINED, Familiarity, Timeline


def make_header(
    model: Model,
    options: Options,
    info: SourceInfo,
    notes: Mapping[str, object],
    timelines: Sequence[tuple[ModelHead, Timeline]],
    *,
    rate_hz: float,
    only: Sequence[str] | None,
    persons: int | None,
) -> Header:
    """Return the header of a run of ``model`` over a source.

    ``notes``: entries of the model about this source. ``timelines``: each classifier head with its
    timeline settings. ``rate_hz``: steps per second. ``only``: labels of the timeline; None: all.
    ``persons``: most persons that are followed; None: persons are not followed.
    """
    card = model.info.card
    scale = card.rate_hz / rate_hz
    length_s = length_of(info, options)
    return Header(
        version=code_version(),
        model=card.name,
        weights_sha256=model.info.weights_sha256,
        labels=card.labels,
        background=card.background,
        rate_hz=rate_hz,
        delay_s=card.delay_s * scale,
        source=info.uri,
        kind=info.kind,
        duration_s=length_s,
        options={
            "start_s": options.start_s,
            "end_s": options.end_s,
            "top_k": options.top_k,
            "wait": options.wait,
            "timeline": options.timeline(card, length_s),
            "temperature": card.temperature,
            **({} if card.familiarity is None else {"familiar": card.familiarity.limit}),
            **_hints(head.card.familiarity for head, _ in timelines),
            **({} if only is None else {"only": only}),
            **({"weights": UNTRAINED} if card.untrained else {}),
            **({"full_scale_db": options.full_scale_db} if options.full_scale_db else {}),
            **options.recorded,
            **({} if options.budget is None or chooses(model) else {"exact": True}),
            **notes,
            **({"assumed": list(info.assumed)} if info.assumed else {}),
        },
        heads=tuple(_head(*each, scale) for each in timelines) if len(timelines) > 1 else None,
        began=None if info.began_s is None else utc(info.began_s),
        task=card.task,
        persons=persons,
        frame_rate_hz=info.rate_hz if info.kind == "video" else None,
    )


def length_of(info: SourceInfo, options: Options) -> float | None:
    """Return the length to be processed of a source, in seconds; None: unknown."""
    end = options.end_s if info.duration_s is None else info.duration_s
    if options.end_s is not None and end is not None:
        end = min(end, options.end_s)
    return None if end is None else max(0.0, end - options.start_s)


def _hints(cards: Iterable[Familiarity | None]) -> dict[str, str]:
    """Return the hints of the cards for unfamiliar input."""
    hints = dict.fromkeys(card.hint for card in cards if card is not None and card.hint)
    return {"unfamiliar": "; ".join(hints)} if hints else {}


def _head(head: ModelHead, timeline: Timeline, scale: float) -> Head:
    card = head.card
    return Head(
        card.name,
        head.weights_sha256,
        card.labels,
        card.background,
        card.delay_s * (scale if head.rate_hz is None else 1.0),
        timeline.threshold,
        timeline.thresholds,
        timeline.smooth_s,
        timeline.presence_s,
        card.temperature,
        timeline.low,
        None if card.familiarity is None else card.familiarity.limit,
    )
