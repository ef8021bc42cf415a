"""A real broker that is away for a while, beside a whole watch of a real feed."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import costream
from costream.core.places import Crossing
from costream.core.records import Gap, Objects, to_json
from costream.runtime.watch import mqtt
from kit.broker import Broker, Listener, needs_broker
from kit.object_nets import bright_model
from kit.rtsp_server import RtspServer, endless, needs_rtsp
from kit.runs import wait_until
from kit.tcp_proxy import TcpProxy

LINES = [f"l{k}=0.{k},0 0.{k},1" for k in range(2, 9)]


@needs_broker
@needs_rtsp
@pytest.mark.parametrize("away_s", [2.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_a_broker_that_is_away(
    away_s: float, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every crossing of the ball arrives, those of the time without a broker, too."""
    if away_s < 30:
        monkeypatch.setattr(mqtt, "RETRY_S", (1, 1))
    records: list[object] = []
    with (
        caplog.at_level(logging.WARNING),
        RtspServer({"ball": endless((112, 80))}) as server,
        Broker(tmp_path) as broker,
        TcpProxy(broker.port) as between,
        Listener(broker) as before,
    ):
        url = f"mqtt://127.0.0.1:{between.port}"
        model = costream.LoadedModel(bright_model())
        feeds = costream.watch(server.url("ball"), model, line=LINES, mqtt=url, timeout=20)
        thread = threading.Thread(target=lambda: records.extend(r for _, r in feeds), daemon=True)
        thread.start()

        def told(listener: Listener) -> set[str]:
            texts = (t for name, t in listener.messages if name.endswith("/event"))
            found = (json.loads(text) for text in texts)
            return {_key(f) for f in found if f["type"] == "crossing"}

        wait_until(lambda: len(told(before)) >= 3)
        between.stall()
        known = told(before)
        broker.kill()
        between.cut()
        killed_s, steps = time.monotonic(), _count(records, Objects)
        wait_until(lambda: time.monotonic() - killed_s >= away_s)
        taken = _count(records, Objects) - steps
        broker.start()
        with Listener(broker) as after:
            between.resume()
            wait_until(lambda: len(told(after)) >= max(3, away_s / 2))
            wait_until(lambda: feeds.status is not None and feeds.status.feeds[0].steps > 0)
            feeds.stop()
            thread.join(90)
            wanted = {_key(to_json(r)) for r in records if isinstance(r, Crossing)}
            arrived = told(before) | told(after)
    last = max(float(key.split()[1]) for key in arrived)
    assert {key for key in wanted if float(key.split()[1]) <= last} == arrived
    assert len(wanted) >= len(known) + away_s / 2
    assert not any(isinstance(r, Gap) for r in records)
    assert taken >= 0.5 * away_s * model.card.rate_hz
    assert "connected again" in caplog.text
    assert "was dropped" not in caplog.text


def _count(records: list[object], kind: type) -> int:
    return sum(isinstance(r, kind) for r in records)


def _key(fields: dict[str, Any]) -> str:
    """Name a crossing by the line and the time as they are published, which is rounded."""
    return f"{fields['line']} {fields['time_s']}"
