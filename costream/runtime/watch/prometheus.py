"""The status of a watch as metrics in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import get_args

from costream.core.records import FeedState
from costream.core.status import FeedStatus, WatchStatus
from costream.core.urls import redact

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[dict[str, str], float]  # labels and value
# Totals of a feed: field of FeedStatus, name, meaning.
_TOTALS = (
    ("steps", "steps", "Steps of the model"),
    ("dropped", "dropped_steps", "Steps dropped to keep up"),
    ("reconnects", "reconnects", "Reconnections after a lost connection"),
    ("gaps", "gaps", "Periods without data"),
    ("errors", "errors", "Errors of the source"),
    ("alerts", "alerts", "Alerts that fired"),
    ("held", "alerts_held_back", "Alerts that the pause of their rule held back"),
    ("macs", "macs", "Multiply-accumulate operations computed"),
    ("dense_macs", "dense_macs", "Operations without continual inference"),
)
# Current values of a feed: name, meaning, value; no sample where it is not known.
_NOW: tuple[tuple[str, str, Callable[[FeedStatus], float | None]], ...] = (
    ("frame_rate_hertz", "Recent rate of frames or blocks received", lambda feed: feed.frames_hz),
    ("step_rate_hertz", "Recent rate of steps", lambda feed: feed.steps_hz),
    ("lag_seconds", "Age of the data of the newest step when it ran", lambda f: f.lag_s),
    ("data_age_seconds", "Time since the newest frame or block arrived", lambda feed: feed.age_s),
    ("step_seconds", "Time per step, frontend included", lambda f: f.network_ms / 1e3),
)


def exposition(status: WatchStatus, at_s: float) -> str:
    """Return all metrics of a status that was taken at ``at_s``, in Unix time."""
    feeds = status.feeds
    about = {"version": status.version, "model": status.model}
    failed = status.failed_actions
    text = [
        _family("info", "gauge", "Version and model, always 1", [(about, 1)]),
        _family("cpu_seconds_total", "counter", "Processor time", [({}, status.cpu_s)]),
        _family("failed_actions_total", "counter", "Alert actions that failed", [({}, failed)]),
    ]
    for name, what, value in (
        ("status_timestamp_seconds", "Unix time of these values", at_s),
        ("uptime_seconds", "Time since the watch started", status.uptime_s),
        ("network_busy_ratio", "Fraction of time spent in the network", status.load),
        ("resident_memory_bytes", "Resident memory of the process", status.memory_mb * 1e6),
    ):
        text.append(_family(name, "gauge", what, [({}, value)]))
    sources = [({**_name(feed), "source": feed.source}, 1) for feed in feeds]
    text.append(_family("feed_info", "gauge", "Source of a feed, always 1", sources))
    states = [
        ({**_name(feed), "state": state}, int(feed.state == state))
        for feed in feeds
        for state in get_args(FeedState)
    ]
    text.append(_family("feed_state", "gauge", "1 for the current state, else 0", states))
    active = [({**_name(f), "label": f.active}, 1) for f in feeds if f.active is not None]
    text.append(_family("feed_active", "gauge", "1 for the label that is active now", active))
    for name, what, of in _NOW:
        known = [(_name(feed), x) for feed in feeds if (x := of(feed)) is not None]
        text.append(_family(f"feed_{name}", "gauge", what, known))
    for field, name, what in _TOTALS:
        counts = [(_name(feed), getattr(feed, field)) for feed in feeds]
        text.append(_family(f"feed_{name}_total", "counter", what, counts))
    return "".join(text)


def _name(feed: FeedStatus) -> dict[str, str]:
    return {"feed": feed.name}


def _family(name: str, kind: str, what: str, samples: Iterable[_Sample]) -> str:
    """Return one metric: help, type, and a value for each set of labels."""
    name = f"costream_{name}"
    lines = [f"# HELP {name} {what}.", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append((f"{name}{{{pairs}}}" if pairs else name) + f" {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    # A name that is not UTF-8 is decoded with lone surrogates, which UTF-8 cannot encode.
    text = redact(text).encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
