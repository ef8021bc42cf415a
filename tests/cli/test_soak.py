"""A watch for an hour, or for COSTREAM_SOAK_MINUTES, with a fault every minute: nothing is missing
without a record that says so, and nothing grows."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pytest

from kit.program import start
from kit.rtsp_server import RtspServer, endless, needs_rtsp
from kit.runs import records, wait_until
from kit.tcp_proxy import TcpProxy

MINUTES = float(os.environ.get("COSTREAM_SOAK_MINUTES", "60"))
FAULT_S = 60.0  # from fault to fault
SAMPLE_S = 5.0
AFTER_S = 45.0  # what follows from a fault does so within this time
STEP_S = 1 / 8
PORT = 19_473


@dataclass(frozen=True)
class Usage:
    """What the process holds at a time of ``time.time()``."""

    time_s: float
    resident: int  # bytes; with pages of files, which are mapped by and by and can be given back
    own: int  # bytes that are no pages of files, in memory or swapped out
    threads: int
    descriptors: int


@dataclass(frozen=True)
class Camera:
    """An RTSP server, and the proxy in front of it."""

    server: RtspServer
    proxy: TcpProxy

    @property
    def faults(self) -> tuple[tuple[Callable[[], None], float, Callable[[], None]], ...]:
        """What happens, for how long, and what ends it."""
        return (
            (self.server.kill, 8.0, self.server.start),
            (self.proxy.stall, 4.0, self.proxy.resume),
            (self.proxy.cut, 0.0, lambda: None),
            (self.server.hang, 15.0, self.server.wake),
            (lambda: self.proxy.cut_after(1000), 1.0, lambda: None),
        )


@needs_rtsp
@pytest.mark.long
def test_an_hour_with_a_fault_a_minute(tmp_path: Path) -> None:
    log, faults = tmp_path / "log", dict[str, list[float]]()
    with ExitStack() as stack:
        cameras = {}
        for name in ("a", "b", "c"):
            server = stack.enter_context(RtspServer({name: endless()}))
            cameras[name] = Camera(server, stack.enter_context(TcpProxy(server.port)))
        urls = [f"rtsp://127.0.0.1:{camera.proxy.port}/{name}" for name, camera in cameras.items()]
        process = start(
            *(
                "watch",
                "--write",
                "all",
                "-m",
                "cooadtr",
                *urls,
                "-o",
                log,
                "--timeout",
                "6",
                "--rotate",
                "200KB",
            ),
            *("--keep", "100MB,1d", "--state-dir", tmp_path / "state", "-q", "--metrics", PORT),
            *("--on", "*>=0.1 every 20s", "--on", "lost", "--clips", "2,1"),
            *("--append", tmp_path / "alerts", "--run", "true {clip}"),
            *("--status-file", tmp_path / "status.json"),
        )
        stack.callback(process.kill)
        wait_until(lambda: len(list(log.glob("*.jsonl"))) == len(urls), process)
        began_s, used, number = time.time(), list[Usage](), 0
        while (now_s := time.time()) < began_s + 60 * MINUTES:
            used.append(usage(psutil.Process(process.pid)))
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as page:
                assert b"costream_feed_steps_total" in page.read()
            if now_s >= began_s + FAULT_S * (number + 1) and now_s < began_s + 60 * MINUTES - 30:
                name = list(cameras)[number % len(cameras)]
                faults.setdefault(name, []).append(now_s)
                begin, length_s, end = cameras[name].faults[number % 5]
                begin()
                time.sleep(length_s)
                end()
                number += 1
            time.sleep(SAMPLE_S)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")
    Path(os.environ.get("COSTREAM_SOAK_USAGE", os.devnull)).write_text(
        "\n".join(json.dumps(vars(each)) for each in used)
    )
    for name in cameras:
        check_records(name, log, faults.get(name, []))
    check_usage(used)


def usage(process: psutil.Process) -> Usage:
    with process.oneshot():
        resident = process.memory_info().rss
        threads, descriptors = process.num_threads(), process.num_fds()
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    sizes = {
        line.split(":")[0]: line.split()[1] for line in status if line.startswith(("Rss", "Vm"))
    }
    own = 1024 * (int(sizes["RssAnon"]) + int(sizes["VmSwap"]))
    return Usage(time.time(), resident, own, threads, descriptors)


def check_records(name: str, log: Path, faults: list[float]) -> None:
    """Every step is there, in order, or a gap record says why not; gaps come with faults alone."""
    parts = sorted(path for path in log.glob("*.jsonl") if f"/{name}" in records(path)[0]["source"])
    lines: list[dict[str, Any]] = [line for path in parts for line in records(path)]
    began = datetime.fromisoformat(lines[0]["began"].replace("Z", "+00:00")).timestamp()
    steps = [line for line in lines if line["type"] == "compute"]
    assert [step["i"] for step in steps] == list(range(len(steps)))
    gaps = [line for line in lines if line["type"] == "gap"]
    for before, after in pairwise(steps):
        one, other = before["time_s"], after["time_s"]
        assert other > one
        explained = after["dropped"] > before["dropped"]  # of a machine that was too slow
        explained |= any(g["start_s"] < other + 0.01 and g["end_s"] > one - 0.01 for g in gaps)
        assert other - one < 1.5 * STEP_S or explained, f"{name}: a hole from {one} to {other}"
    for gap in gaps:
        at_s = began + gap["start_s"]
        caused = any(fault_s - 5 < at_s < fault_s + AFTER_S for fault_s in faults)
        assert caused or "dropped" in gap["reason"], (name, gap, at_s, faults)
    assert {path.suffix for path in log.iterdir() if path.is_file()} <= {".jsonl", ".mkv", ".lock"}


def check_usage(used: list[Usage]) -> None:
    """From the first quarter on, nothing becomes more."""
    later = [each for each in used if each.time_s > used[0].time_s + 15 * MINUTES]
    half = len(later) // 2
    for what in ("threads", "descriptors"):
        first, last = (
            [getattr(each, what) for each in part] for part in (later[:half], later[half:])
        )
        assert median(last) <= median(first), what
    hours = np.array([(each.time_s - later[0].time_s) / 3600 for each in later])
    for what in ("resident", "own"):
        sizes = [getattr(each, what) / 1e6 for each in later]
        slope = float(np.polyfit(hours, sizes, 1)[0])
        print(f"{what}: {slope:+.2f} MB an hour, {sizes[0]:.1f} to {sizes[-1]:.1f}")
    assert slope * min(hours[-1], 1.0) < 0.5  # of less than an hour: that much in all of it
