"""What sounds are made of: shaped noise, tones that glide, blows and what they set ringing, rooms.

Sounds are float64 [N] at RATE_HZ; gains are amplitudes unless named dB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Wave: TypeAlias = npt.NDArray[np.float64]
Points: TypeAlias = Sequence[tuple[float, float]]
Mode: TypeAlias = tuple[float, float, float]  # Hz, seconds to 1/e, gain

RATE_HZ = 48_000
_TOP_HZ = 20_000.0  # no partial above


def samples(length_s: float) -> int:
    """Return how many samples so many seconds have."""
    return round(length_s * RATE_HZ)


def times(length_s: float) -> Wave:
    """Return the second of each sample."""
    return np.arange(samples(length_s)) / RATE_HZ


def curve(length_s: float, points: Points) -> Wave:
    """Return what runs straight from point (second, value) to point."""
    return np.interp(times(length_s), *zip(*points, strict=True))


def spectrum(points: Points) -> Callable[[Wave], Wave]:
    """Return a gain for each Hz: straight lines in dB over octaves, between points (Hz, dB)."""
    hz, level_db = zip(*points, strict=True)
    octaves = np.log2(hz)

    def gain(at_hz: Wave) -> Wave:
        return 10 ** (np.interp(np.log2(np.maximum(at_hz, 1.0)), octaves, level_db) / 20)

    return gain


def formants(*peaks: tuple[float, float, float], tilt_db: float = -6.0) -> Callable[[Wave], Wave]:
    """Return a gain for each Hz: resonances (Hz, width in Hz, gain), falling by dB an octave."""

    def gain(at_hz: Wave) -> Wave:
        hills = sum(g / (1 + ((at_hz - hz) / (width / 2)) ** 2) for hz, width, g in peaks)
        return (0.02 + hills) * (np.maximum(at_hz, 50.0) / 500) ** (tilt_db / 6.02)

    return gain


def filtered(wave: Wave, gain: Callable[[Wave], Wave]) -> Wave:
    """Return the sound with each frequency louder or fainter."""
    size = len(wave) + RATE_HZ // 10  # what rings on must not come round to the beginning
    hz = np.fft.rfftfreq(size, 1 / RATE_HZ)
    return np.fft.irfft(np.fft.rfft(wave, size) * gain(hz), size)[: len(wave)]


def noise(rng: np.random.Generator, length_s: float, points: Points) -> Wave:
    """Return noise of this spectrum (Hz, dB), its rms 1."""
    wave = filtered(rng.standard_normal(samples(length_s)), spectrum(points))
    return wave / np.sqrt(np.mean(wave**2))


def wander(rng: np.random.Generator, length_s: float, rate_hz: float) -> Wave:
    """Return what strays about 0 with deviation 1, new every 1 / rate_hz seconds."""
    count = int(length_s * rate_hz) + 2
    return np.interp(times(length_s) * rate_hz, np.arange(count), rng.standard_normal(count))


def tone(pitch_hz: Wave, gain: Callable[[Wave], Wave], partials: int = 60) -> Wave:
    """Return the harmonics of a pitch [N] in Hz, each as loud as its frequency is to be."""
    phase = 2 * np.pi * np.cumsum(pitch_hz) / RATE_HZ
    out = np.zeros(len(pitch_hz))
    for k in range(1, partials + 1):
        at_hz = k * pitch_hz
        if at_hz.min() >= _TOP_HZ:
            break
        out += np.where(at_hz < _TOP_HZ, gain(at_hz), 0.0) * np.sin(k * phase + 0.7 * k * k)
    return out


def blows(length_s: float, blows: Points) -> Wave:
    """Return single samples: points (second, gain)."""
    wave = np.zeros(samples(length_s))
    for second, gain in blows:
        at = samples(second)
        if 0 <= at < len(wave):
            wave[at] += gain
    return wave


def scattered(rng: np.random.Generator, length_s: float, rate_hz: float, spread: float) -> Wave:
    """Return single samples at chance, so many a second; gains are log-normal."""
    count = rng.poisson(rate_hz * length_s)
    gains = rng.lognormal(0, spread, count) * rng.choice([-1, 1], count)
    return blows(length_s, list(zip(rng.uniform(0, length_s, count), gains, strict=True)))


def pings(
    rng: np.random.Generator,
    length_s: float,
    rate_hz: float,
    band: tuple[float, float],
    decay_s: float,
) -> Wave:
    """Return short notes at chance, so many a second, of pitches between these; few are loud."""
    parts = []
    for second in rng.uniform(0, length_s, rng.poisson(rate_hz * length_s)):
        hz, decay = np.exp(rng.uniform(*np.log(band))), decay_s * rng.uniform(0.5, 1.5)
        t = times(6 * decay)
        note = np.sin(2 * np.pi * hz * t + rng.uniform(0, 2 * np.pi)) * np.exp(-t / decay)
        parts.append((second, rng.lognormal(0, 0.8) * note * np.minimum(1, t / 0.0003)))
    return placed(length_s, parts)


def struck(wave: Wave, modes: Sequence[Mode]) -> Wave:
    """Return what a thing with these modes sounds like when it is struck so."""
    length_s = 7 * max(decay for _, decay, _ in modes)
    t = times(length_s)
    body = sum(g * np.exp(-t / decay) * np.sin(2 * np.pi * hz * t) for hz, decay, g in modes)
    return convolved(wave, body)


def convolved(wave: Wave, body: Wave) -> Wave:
    """Return the convolution, as long as the sound."""
    size = len(wave) + len(body)
    return np.fft.irfft(np.fft.rfft(wave, size) * np.fft.rfft(body, size), size)[: len(wave)]


def room(rng: np.random.Generator, wave: Wave, decay_s: float, wet: float) -> Wave:
    """Return the sound in a room whose echo falls by 60 dB in so many seconds."""
    t = times(decay_s)
    echo = noise(rng, decay_s, ((60, -12), (250, 0), (2500, -2), (8000, -16), (16000, -34)))
    echo *= 10 ** (-3 * t / decay_s) * np.minimum(1, t / 0.004)
    echo *= wet / np.sqrt(np.sum(echo**2))
    return wave + convolved(wave, echo)


def compressed(wave: Wave, share: float, window_s: float = 0.05) -> Wave:
    """Return the sound with its loudness evened out: by a share (0: as it was) of its dB."""
    t = times(window_s) - window_s / 2
    window = np.exp(-0.5 * (t / (window_s / 5)) ** 2)
    power = np.maximum(convolved(wave**2, window / window.sum()), 0.0)
    delay = len(window) // 2
    power = np.concatenate([power[delay:], np.full(delay, power[-1])])
    return wave * (power + 0.02 * power.mean()) ** (-share / 2)


def placed(length_s: float, parts: Sequence[tuple[float, Wave]]) -> Wave:
    """Return parts laid over each other: (second it begins, sound); what sticks out is cut off."""
    out = np.zeros(samples(length_s))
    for second, part in parts:
        at = samples(second)
        some = part[: max(0, len(out) - at)]
        out[at : at + len(some)] += some
    return out


def faded(wave: Wave, in_s: float = 0.01, out_s: float = 0.05) -> Wave:
    """Return the sound coming and going within these seconds."""
    t = np.arange(len(wave)) / RATE_HZ
    return wave * np.minimum(1, np.minimum(t / in_s, (t[-1] - t) / out_s))


def levelled(wave: Wave, peak: float) -> Wave:
    """Return the sound at this peak."""
    return wave * (peak / np.abs(wave).max())
