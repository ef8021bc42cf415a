"""Benchmark of a run over a file against decoding and resizing only."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.api.streams import LoadedModel
from costream.core.energy import EnergyMeter
from costream.core.errors import SourceError
from costream.core.records import VideoFrame
from costream.core.tables import Table
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.options import source_options
from costream.runtime.pipeline import run
from costream.sinks.registry import make_sinks
from costream.sources.base import DecoderChoice, SourceOptions
from costream.sources.memory_source import MemorySource
from costream.sources.uris import open_source, sniff

BASELINE = "decode + resize"
COLUMNS = (
    *("way", "CPU s", "wall s", "x real time on one core"),
    *("CPU, x decode + resize", "wall, x decode + resize", "joules"),
)


def stream_table(uri: str, model: Model, rounds: int = 3, duration_s: float | None = None) -> Table:
    """Process the video ``uri`` with each method in turn, ``rounds`` times; return the medians.

    The baseline decodes every frame and resizes it to the model's input size with swscale: the
    cost of a program without a network. The run, as ``detect`` does it, also writes JSONL, decodes
    ahead on a second core and skips what no step looks at. CPU time is that of the process, user
    and system; start-up and loading weights are excluded. Joules are those of the whole machine;
    None where it does not report them, which a note says.

    Raises SourceError when the file cannot be read, is not a video, or has fewer than two frames.
    """
    if sniff(uri) != "video":
        raise SourceError("not a video file", where=uri)
    options = SourceOptions(end_s=duration_s, box=model.info.box)
    ways: dict[str, Callable[[], float]] = {
        "decode": lambda: _decode(uri, options, resize=False),
        BASELINE: lambda: _decode(uri, options, resize=True),
        "costream": lambda: _run(uri, duration_s, model),
        "costream --decoder fast": lambda: _run(uri, duration_s, model, "fast"),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    used: dict[str, list[float | None]] = {name: [] for name in ways}
    media_s: dict[str, float] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            energy, cpu, wall = EnergyMeter(), time.process_time(), time.perf_counter()
            media_s[name] = way()
            spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            used[name].append(energy.read())
    cpu_s = {name: statistics.median(cpu for cpu, _ in times) for name, times in spent.items()}
    wall_s = {name: statistics.median(wall for _, wall in times) for name, times in spent.items()}
    rows = tuple(
        (
            *(name, cpu_s[name], wall_s[name], media_s[BASELINE] / cpu_s[name]),
            *(cpu_s[name] / cpu_s[BASELINE], wall_s[name] / wall_s[BASELINE]),
            _median(used[name]),
        )
        for name in ways
    )
    measured = ", ".join(energy.parts) or f"not measured, {energy.missing}"
    notes = (
        f"{media_s[BASELINE]:.1f} s of video, model {model.info.card.name},"
        f" {model.info.card.rate_hz:g} steps per second, {rounds} rounds in turns",
        f"Joules of the whole machine: {measured}",
    )
    return Table(f"stream: {uri}", COLUMNS, rows, notes)


def _median(joules: Sequence[float | None]) -> float | None:
    """Return the median; None if any is not known."""
    known = [value for value in joules if value is not None]
    return statistics.median(known) if len(known) == len(joules) else None


def frames_table(uri: str, model: Model, rounds: int = 3, most: int = 150) -> Table:
    """Process the first ``most`` frames of a video from memory; return the medians.

    The baseline is the run over an array of them; the other way gives them one by one to a stream
    of the Python API. Raises SourceError like ``stream_table``.
    """
    frames, rate_hz = _frames(uri, most)
    loaded = LoadedModel(model)

    def one_by_one() -> None:
        stream = loaded.stream(rate_hz=rate_hz)
        for frame in frames:
            stream.step(frame)
        stream.finish()

    reading = SourceOptions(box=model.info.box)
    ways: dict[str, Callable[[], object]] = {
        "run over the array": lambda: run(
            MemorySource(frames, reading, rate_hz=rate_hz), model, ()
        ),
        "stream.step(frame)": one_by_one,
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            spent[name].append(1e3 * (time.perf_counter() - began) / len(frames))
    ms = {name: statistics.median(times) for name, times in spent.items()}
    first = next(iter(ms.values()))
    rows = tuple((name, value, value / first) for name, value in ms.items())
    notes = (f"{len(frames)} frames of {frames[0].shape[1]}x{frames[0].shape[0]} in memory",)
    return Table("Python", ("way", "ms a frame", "to the run"), rows, notes)


def _frames(uri: str, most: int) -> tuple[list[npt.NDArray[np.uint8]], float]:
    """Return the first frames of a video in its original size, and their rate."""
    source = open_source(uri)
    try:
        info = source.open()
        items = (item for item in source.items() if isinstance(item, VideoFrame))
        frames = [frame.rgb for frame in itertools.islice(items, most)]
    finally:
        source.close()
    return frames, info.rate_hz or 25.0


def _decode(uri: str, options: SourceOptions, *, resize: bool) -> float:
    """Decode every frame; return the duration of the video in seconds."""
    source = open_source(uri, options)
    first_s = last_s = None
    frames = 0
    try:
        source.open()
        for item in source.items():
            if isinstance(item, VideoFrame):
                first_s, last_s = (item.time_s if first_s is None else first_s), item.time_s
                frames += 1
                if resize:
                    _ = item.rgb
    finally:
        source.close()
    if first_s is None or last_s is None or frames < 2:
        raise SourceError("too short to measure", where=uri)
    return (last_s - first_s) * frames / (frames - 1)


def _run(
    uri: str, duration_s: float | None, model: Model, decoder: DecoderChoice = "software"
) -> float:
    options = Options(end_s=duration_s, decoder=decoder)
    source = open_source(uri, source_options(options, model, stepped=True))
    with tempfile.TemporaryDirectory() as folder:
        sinks = make_sinks(("jsonl",), Path(folder), "bench")
        summary = run(source, model, sinks, options=options)
    return summary.media_s
