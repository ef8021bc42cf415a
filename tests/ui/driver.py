"""Plays a made-up run of ten steps a second into the views, as a process with its own terminal.

    python driver.py [--steps N] [--sleep S] [--unknown] [--die-at N raise|exit|sigint]

Records also go to standard output as JSON lines when that is no terminal; on a terminal the run
ends with the readable timeline.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator

import numpy as np

from costream.models.card import Timeline
from costream.records import Compute, Fault, Header, Prediction, StageTimes, Summary
from costream.runtime.segments import Segmenter
from costream.sinks.registry import make_sinks
from costream.ui.console import live_allowed, stderr_console, stdout_console
from costream.ui.live import LiveView
from costream.ui.plain import PlainLines
from costream.ui.timeline import FinalTimeline

LABELS = ("background", "walk", "sit down", "sit", "stand up", "fall", "lie on the floor")
SCRIPT = ((1, 6.0), (2, 1.5), (3, 9.0), (4, 1.2), (1, 8.0), (0, 3.0), (5, 0.9), (6, 12.0))
RATE_HZ = 10.0


def probabilities(steps: int) -> Iterator[np.ndarray]:
    """Scores that follow SCRIPT over and over, with soft changes and noise."""
    noise = np.random.default_rng(7)
    now = np.full(len(LABELS), 1 / len(LABELS))
    plan = itertools.chain.from_iterable(
        itertools.repeat(k, round(s * RATE_HZ)) for k, s in itertools.cycle(SCRIPT)
    )
    for k in itertools.islice(plan, steps):
        aim = np.full(len(LABELS), 0.01) + noise.random(len(LABELS)) * 0.03
        aim[k] = 0.9
        now = 0.6 * now + 0.4 * aim / aim.sum()
        yield now / now.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sleep", type=float, default=0.01)
    parser.add_argument("--unknown", action="store_true")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--how", default="raise")
    parser.add_argument("--plain-every", type=float, default=5.0)
    args = parser.parse_args()

    name = "walk in the room.mp4"
    duration_s = None if args.unknown else args.steps / RATE_HZ
    header = Header(
        *("0.1.0", "cooadtr", "0" * 64, LABELS, "background", RATE_HZ, 0.0, name, "video"),
        duration_s,
        {"timeline": Timeline()},
    )
    data_on_terminal = sys.stdout.isatty()
    sinks = make_sinks(("jsonl",), None, name, stream=None if data_on_terminal else sys.stdout)
    if data_on_terminal:
        sinks.append(FinalTimeline(stdout_console(), name))
    live = live_allowed(sys.stderr)
    console = stderr_console()
    sinks.insert(
        0, LiveView(console, name) if live else PlainLines(console, name, every_s=args.plain_every)
    )

    segmenter = Segmenter(LABELS, Timeline(), RATE_HZ, 0.0, "background")
    began = time.perf_counter()
    for sink in sinks:
        sink.open(header)
    found = 0
    for i, p in enumerate(probabilities(args.steps)):
        if i == args.die_at:
            if args.how == "exit":
                sys.exit(7)
            if args.how == "sigint":
                os.kill(os.getpid(), signal.SIGINT)
            raise RuntimeError("died on purpose")
        time_s = i / RATE_HZ
        best = np.argsort(-p)[:3]
        top = tuple((LABELS[k], float(p[k])) for k in best)
        ms = StageTimes(0.8, 1.2, 0.5 + 0.2 * (i % 3), 0.1)
        segments = segmenter.push(time_s, p)
        if i == args.steps - 1:
            segments += segmenter.flush()
        found += len(segments)
        faults = [Fault(time_s, "1 packet could not be decoded")] if i == 300 else []
        cost = Compute(i, time_s, 9_640_000, 410_900_000, ms, dropped=0)
        for record in (Prediction(i, time_s, 3 * i, 512 * i, top), *segments, *faults, cost):
            for sink in sinks:
                sink.write(record)
        time.sleep(args.sleep)
    wall_s, n = time.perf_counter() - began, args.steps
    media_s = n / RATE_HZ
    macs = (9_640_000 * n, 410_900_000 * n)
    totals = (n, found, 0, int(n > 300), media_s, wall_s, media_s / wall_s, *macs)
    for sink in sinks:
        sink.close(Summary(*totals, complete=True, exit=0))


if __name__ == "__main__":
    main()
