"""Plays a made-up run of ten steps a second into the views, as a process with its own terminal.

    python driver.py [--steps N] [--sleep S] [--unknown] [--die-at N --how raise|exit|sigint]
    python driver.py --sound [--heads] [--lag S] ...

``--sound``: four steps a second that hear a sweep with beats, ``--heads`` by two models.

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
from dataclasses import replace

import numpy as np

from costream.core.records import (
    AudioBlock,
    Compute,
    Fault,
    Head,
    Header,
    Picture,
    Prediction,
    Record,
    StageTimes,
    Summary,
    heads_of,
)
from costream.runtime.segments import Segmenter
from costream.sinks.base import PictureSink, Sink
from costream.sinks.registry import make_sinks
from costream.ui.console import live_allowed, stderr_console, stdout_console
from costream.ui.plain import PlainLines
from costream.ui.run.view import LiveView
from costream.ui.timeline import FinalTimeline
from costream.weights_io.card import Timeline

LABELS = ("background", "walk", "sit down", "sit", "stand up", "fall", "lie on the floor")
SOUNDS = ("background", "dog", "siren", "rain", "engine", "children", "street music")
SCRIPT = ((1, 6.0), (2, 1.5), (3, 9.0), (4, 1.2), (1, 8.0), (0, 3.0), (5, 0.9), (6, 12.0))
RATE_HZ = 10.0
HEARD_HZ, SAMPLE_HZ = 4.0, 16_000


def probabilities(steps: int, rate_hz: float) -> Iterator[np.ndarray]:
    """Scores that follow SCRIPT over and over, with soft changes and noise."""
    noise = np.random.default_rng(7)
    now = np.full(len(LABELS), 1 / len(LABELS))
    plan = itertools.chain.from_iterable(
        itertools.repeat(k, round(s * rate_hz)) for k, s in itertools.cycle(SCRIPT)
    )
    for k in itertools.islice(plan, steps):
        aim = np.full(len(LABELS), 0.01) + noise.random(len(LABELS)) * 0.03
        aim[k] = 0.9
        now = 0.6 * now + 0.4 * aim / aim.sum()
        yield now / now.sum()


def heard(i: int) -> Picture:
    """A quarter of a second of a tone that rises and falls, beats of noise below it."""
    count = int(SAMPLE_HZ / HEARD_HZ)
    t = i / HEARD_HZ + np.arange(count) / SAMPLE_HZ
    pitch = 2000 + 1500 * np.sin(0.4 * t)
    noise = np.random.default_rng(i).standard_normal(count) * np.exp(-8 * (t % 0.5))
    sound = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / SAMPLE_HZ) + 0.05 * noise
    frames = sound.reshape(20, -1) * np.hanning(count // 20)
    power = np.abs(np.fft.rfft(frames)[:, 1:]) ** 2
    spectrum = np.log(power.reshape(20, 20, -1).mean(2) + 1e-6).astype(np.float32)
    block = AudioBlock(i, (i + 1) / HEARD_HZ, sound.astype(np.float32))
    return Picture(block.time_s, block, None, spectrum)


def header_of(args: argparse.Namespace, name: str) -> Header:
    rate_hz = HEARD_HZ if args.sound else RATE_HZ
    heads = tuple(
        Head(model, "0" * 64, labels, "background", 0.0, 0.5)
        for model, labels in (("cotrans", LABELS), ("cosounds", SOUNDS))
    )
    return Header(
        *("0.1.0", "cotrans,cosounds" if args.heads else "cooadtr", "0" * 64),
        *((*LABELS, *SOUNDS) if args.heads else LABELS, "background", rate_hz, 0.0),
        *(name, "audio" if args.sound else "video"),
        None if args.unknown else args.steps / rate_hz,
        {"timeline": Timeline()},
        heads=heads if args.heads else None,
    )


def die(how: str) -> None:
    if how == "exit":
        sys.exit(7)
    if how == "sigint":
        os.kill(os.getpid(), signal.SIGINT)
    raise RuntimeError("died on purpose")


def play(args: argparse.Namespace, header: Header, sinks: list[Sink]) -> int:
    """Write the records of a run and return the number of segments."""
    heads, rate_hz, found = heads_of(header), header.rate_hz, 0
    segmenters = [
        Segmenter(head.labels, Timeline(), rate_hz, 0.0, head.background) for head in heads.values()
    ]
    # The second head is some steps behind the first, so that they do not say the same.
    head_states = [
        itertools.islice(probabilities(args.steps + 20 * k, rate_hz), 20 * k, None)
        for k in range(len(heads))
    ]
    for i, scores in enumerate(zip(*head_states, strict=True)):
        if i == args.die_at:
            die(args.how)
        time_s = i / rate_hz
        records: list[Record] = []
        for (name, head), p, segmenter in zip(heads.items(), scores, segmenters, strict=True):
            top = tuple((head.labels[k], float(p[k])) for k in np.argsort(-p)[:3])
            records.append(Prediction(i, time_s, 3 * i, 512 * i, top, model=name))
            segments = segmenter.push(time_s, p)
            if i == args.steps - 1:
                segments += segmenter.flush()
            found += len(segments)
            records += [replace(segment, model=name) for segment in segments]
        if i == 300:
            records.append(Fault(time_s, "1 packet could not be decoded"))
        ms = StageTimes(0.8, 1.2, 0.5 + 0.2 * (i % 3), 0.1)
        records.append(Compute(i, time_s, 9_640_000, 410_900_000, ms, args.lag, dropped=0))
        for sink in sinks:
            for record in records:
                sink.write(record)
            if args.sound and isinstance(sink, PictureSink):
                sink.draw(heard(i))
        time.sleep(args.sleep)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sleep", type=float, default=0.01)
    parser.add_argument("--unknown", action="store_true")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--how", default="raise")
    parser.add_argument("--plain-every", type=float, default=5.0)
    parser.add_argument("--sound", action="store_true")
    parser.add_argument("--heads", action="store_true")
    parser.add_argument("--lag", type=float, default=0.0)
    args = parser.parse_args()

    name = "walk in the room.mp4"
    header = header_of(args, name)
    data_on_terminal = sys.stdout.isatty()
    sinks = make_sinks(("jsonl",), None, name, stream=None if data_on_terminal else sys.stdout)
    if data_on_terminal:
        sinks.append(FinalTimeline(stdout_console(), name))
    live = live_allowed(sys.stderr)
    console = stderr_console()
    sinks.insert(
        0, LiveView(console, name) if live else PlainLines(console, name, every_s=args.plain_every)
    )

    began = time.perf_counter()
    for sink in sinks:
        sink.open(header)
    found = play(args, header, sinks)
    wall_s, n = time.perf_counter() - began, args.steps
    media_s = n / header.rate_hz
    macs = (9_640_000 * n, 410_900_000 * n)
    totals = (n, found, 0, int(n > 300), media_s, wall_s, media_s / wall_s, *macs)
    for sink in sinks:
        sink.close(Summary(*totals, complete=True, exit=0))


if __name__ == "__main__":
    main()
