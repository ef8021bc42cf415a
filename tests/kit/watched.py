"""Made-up statuses of watches."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from costream.core.records import Alert, FeedState
from costream.core.status import FeedStatus, WatchStatus

LABELS = ("walk", "sit", "stand up", "falling")
PLACES = ("front door", "yard", "gate", "lab", "hall", "kitchen", "stairs", "car park")


def feed(name: str = "door", state: FeedState = "live", **values: Any) -> FeedStatus:
    known = {
        "age_s": 0.02,
        "time_s": 3723.4,
        "frames_hz": 25.0,
        "steps_hz": 4.0,
        "steps": 14_893,
        "lag_s": 0.12,
        "top": (("walk", 0.912), ("sit", 0.05)),
        "active": "walk",
        "network_ms": 0.52,
        "macs": 9_640_000 * 14_893,
        "dense_macs": 410_900_000 * 14_893,
    }
    return FeedStatus(name, f"rtsp://***@{name}/live", state, **{**known, **values})


def watch(*feeds: FeedStatus, **values: Any) -> WatchStatus:
    about = ("0.1.0", "cooadtr", "2026-11-22T03:00:00+00:00", "2026-11-22T04:02:03+00:00")
    values = {"labels": LABELS, "uptime_s": 3723.0, "load": 0.23, "memory_mb": 412.0, **values}
    return WatchStatus(*about, feeds=feeds, **values)


def many(count: int, *, k: int = 0, seed: int = 3) -> WatchStatus:
    """``count`` feeds of which some are in trouble, ``k`` seconds into the run."""
    chance = random.Random(seed)
    feeds, strips = [], {}
    for n in range(count):
        name = PLACES[n % len(PLACES)] + (f" {n // len(PLACES) + 1}" if n >= len(PLACES) else "")
        strip: list[str | None] = []
        while len(strip) < 60 + k:
            label = chance.choice((None, None, *LABELS))
            strip += [label] * chance.randint(1, 14)
        strip = strip[k : k + 60]
        strips[name] = tuple(strip)
        rates = {"frames_hz": 25 + chance.gauss(0, 0.3), "lag_s": abs(chance.gauss(0.12, 0.05))}
        score = chance.uniform(0.55, 0.99)
        top = ((strip[-1] or "background", score), ("sit", 1 - score))
        feeds.append(feed(name, active=strip[-1], top=top, **rates, dropped=chance.choice((0, 12))))
    bad: tuple[tuple[FeedState, float | None, str], ...] = (
        ("waiting", 12.3, "server closed the connection"),
        ("lost", 754.0, "wrong user name or password (401)"),
        ("stalled", 3.4, "no packets"),
        ("connecting", None, ""),
    )
    for place, (state, age_s, message) in zip((2, 3, 9, 11), bad, strict=True):
        if place < count:
            old = feeds[place]
            feeds[place] = replace(
                old, state=state, age_s=age_s, message=message, reconnects=3, frames_hz=0.0
            )
    alert = Alert(3700.0, "falling>=0.8 for 2s", "falling", 0.92, 3697.5, "front-door-0003.mkv")
    alerts = tuple(
        (feeds[n % count].name, replace(alert, time_s=3700.0 + n, score=0.9 + n / 100))
        for n in range(3)
    )
    if count > 1:
        feeds[0] = replace(feeds[0], alerts=3)
    values = {"alerts": alerts, "strips": strips, "uptime_s": 3723.0 + k, "failed_actions": 1}
    return watch(*feeds, **values)
