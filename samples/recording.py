"""One sound after another as a recording, with the script of what is to be heard when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from synthesis import RATE_HZ, Wave, levelled, noise, samples

PAUSE_S = 1.5
_PEAK = 0.7
_SEED = 2026
_BED_DB = -72.0  # of the microphone, below full scale
_BITS_A_SECOND = 40_000


def joined(sounds: Sequence[tuple[str, Wave]], pause: str) -> tuple[Wave, list[dict[str, object]]]:
    """Return sounds with pauses around them, and the segments: from second, to second, label."""
    gap = np.zeros(samples(PAUSE_S))
    parts, labels = [gap], [pause]
    for label, wave in sounds:
        parts += [levelled(wave, _PEAK), gap]
        labels += [label, pause]
    wave = np.concatenate(parts)
    bed = noise(
        np.random.default_rng(_SEED), len(wave) / RATE_HZ, ((50, 0), (500, -4), (8000, -12))
    )
    ends = np.cumsum([len(part) for part in parts]) / RATE_HZ
    begins = [0.0, *ends[:-1]]
    segments: list[dict[str, object]] = [
        {"start_s": round(float(a), 3), "end_s": round(float(b), 3), "label": label}
        for a, b, label in zip(begins, ends, labels, strict=True)
    ]
    return wave + 10 ** (_BED_DB / 20) * bed, segments


def write(folder: Path, name: str, sound: tuple[Wave, list[dict[str, object]]]) -> None:
    """Write NAME.ogg (Opus) and NAME.json (the script)."""
    wave, segments = sound
    # The serial number of an Ogg stream is drawn at chance, but for bitexact.
    with av.open(str(folder / f"{name}.ogg"), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libopus", rate=RATE_HZ, layout="mono")
        stream.bit_rate = _BITS_A_SECOND
        frame = av.AudioFrame.from_ndarray(wave.astype(np.float32)[None], "flt", "mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, 0, Fraction(1, RATE_HZ)
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    script = {
        "sound": f"{name}.ogg",
        "rate_hz": RATE_HZ,
        "samples": len(wave),
        "segments": segments,
    }
    text = json.dumps(script, indent=1) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
