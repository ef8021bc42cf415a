"""Instruments: each gives one note, or one stroke, as sound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from synthesis import RATE_HZ, Wave, curve, filtered, noise, samples, spectrum, times

Rng = np.random.Generator

_CYCLE = 2048  # samples of a table


def hertz(key: float) -> float:
    """Return the pitch of a MIDI key."""
    return 440.0 * 2 ** ((key - 69) / 12)


def pluck(rng: Rng, key: float, length_s: float, bright: float = 0.5, ring_s: float = 1.0) -> Wave:
    """A plucked string (Karplus, Strong, Computer Music Journal 7(2), 1983).

    ``bright`` (0 to 1) is how hard it is plucked, ``ring_s`` how long an A of 110 Hz rings.
    """
    period = round(RATE_HZ / hertz(key))
    string = rng.uniform(-1, 1, period)
    for _ in range(round(6 * (1 - bright))):
        string = 0.5 * (string + np.roll(string, 1))
    string -= string.mean()
    loss = 10 ** (-3 / (110 * ring_s * max(1.0, hertz(key) / 220)))
    turns = []
    for _ in range(samples(length_s) // period + 1):
        turns.append(string)
        string = loss * (0.9 * string + 0.1 * np.roll(string, 1))
    wave = np.concatenate(turns)[: samples(length_s)]
    return wave / np.abs(wave).max() * _release(length_s, 0.03)


def amplified(wave: Wave, drive: float) -> Wave:
    """Return the sound through a guitar amplifier that is driven so hard."""
    hard = np.tanh(drive * filtered(wave, spectrum(((60, -20), (120, 0), (900, 3), (6000, 0)))))
    box = spectrum(
        ((50, -24), (90, 0), (350, -2), (2500, 3), (4500, -2), (6500, -24), (12000, -60))
    )
    return filtered(hard, box)


def bass(rng: Rng, key: float, length_s: float) -> Wave:
    """An electric bass."""
    wave = filtered(
        pluck(rng, key, length_s, 0.2, 2.0), spectrum(((40, 0), (500, -2), (2000, -24)))
    )
    return wave / np.abs(wave).max() * _release(length_s, 0.04)


def synth_bass(key: float, length_s: float) -> Wave:
    """A bass of a synthesiser: a saw tooth whose filter closes."""
    t = times(length_s)
    dark = filtered(
        _saw(np.full(len(t), hertz(key)), 1000), spectrum(((60, 0), (250, -4), (900, -30)))
    )
    clear = filtered(
        _saw(np.full(len(t), hertz(key))), spectrum(((60, 0), (1200, -3), (4000, -24)))
    )
    return (dark + clear * np.exp(-t / 0.08)) * _release(length_s, 0.02)


def piano(key: float, length_s: float) -> Wave:
    """A piano: partials a little too sharp, the high ones sooner gone."""
    t, wave = times(length_s), np.zeros(samples(length_s))
    for k in range(1, 16):
        hz = hertz(key) * k * np.sqrt(1 + 0.0004 * k * k)
        if hz > 12_000:
            break
        fall = np.exp(-t * (0.6 + 0.5 * k * hertz(key) / 260))
        wave += fall * k**-1.3 * sum(np.sin(2 * np.pi * hz * (1 + d) * t + k) for d in (0, 4e-4))
    return wave * np.minimum(1, t / 0.003) * _release(length_s, 0.06)


def organ(key: float, length_s: float) -> Wave:
    """An electric organ with a turning loudspeaker."""
    t = times(length_s)
    pitch = hertz(key) * (1 + 0.003 * np.sin(2 * np.pi * 6.2 * t))
    wave = np.zeros(len(t))
    for ratio, gain in ((0.5, 0.8), (1, 1.0), (1.5, 0.6), (2, 0.7), (3, 0.3), (4, 0.25)):
        wave += gain * np.sin(2 * np.pi * ratio * np.cumsum(pitch) / RATE_HZ)
    return wave * (1 + 0.2 * np.sin(2 * np.pi * 6.2 * t + 1)) * _release(length_s, 0.01, 0.005)


def strings(rng: Rng, key: float, length_s: float, attack_s: float = 0.12) -> Wave:
    """A section of bowed strings: players who agree only roughly."""
    t = times(length_s)
    body = spectrum(
        ((150, -6), (300, 0), (600, -3), (1200, -4), (2800, -6), (5000, -18), (10000, -36))
    )
    wave = np.zeros(len(t))
    for _ in range(6):
        vibrato = 0.004 * np.sin(2 * np.pi * (rng.uniform(4.8, 6.2) * t + rng.uniform()))
        pitch = hertz(key) * (1 + 0.003 * rng.standard_normal() + vibrato * np.minimum(1, t / 0.4))
        wave += _saw(pitch)
    bow = noise(rng, length_s, ((300, -20), (2500, 0), (8000, -6)))
    return (filtered(wave, body) + 0.05 * bow) * _release(length_s, 0.12, attack_s)


def brass(rng: Rng, key: float, length_s: float) -> Wave:
    """A brass instrument: the louder, the brighter (Risset, 1966)."""
    t = times(length_s)
    loud = np.minimum(1, t / 0.05) * (0.75 + 0.25 * np.exp(-t / 0.12)) * _release(length_s, 0.07)
    pitch = hertz(key) * (1 + 0.004 * np.sin(2 * np.pi * 5.3 * t) * np.minimum(1, t / 0.4))
    pitch *= 1 - 0.02 * np.exp(-t / 0.02)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
    wave = sum(loud ** (1 + 0.35 * k) * np.sin(k * phase) * k**-0.6 for k in range(1, 18))
    lip = spectrum(((150, -6), (600, 0), (1500, 0), (3500, -12), (9000, -40)))
    return filtered(wave, lip)


def kick(length_s: float = 0.35, high_hz: float = 160, low_hz: float = 48) -> Wave:
    """A bass drum."""
    t = times(length_s)
    pitch = low_hz + (high_hz - low_hz) * np.exp(-t / 0.025)
    wave = np.sin(2 * np.pi * np.cumsum(pitch) / RATE_HZ) * np.exp(-t / (0.3 * length_s))
    return wave + 0.25 * np.exp(-t / 0.002) * np.sin(2 * np.pi * 2500 * t)


def snare(rng: Rng, length_s: float = 0.22) -> Wave:
    """A snare drum: the skin, and the wires below it."""
    t = times(length_s)
    skin = sum(np.sin(2 * np.pi * hz * t) for hz in (185, 330)) * np.exp(-t / 0.04)
    wires = noise(rng, length_s, ((200, -16), (1500, -2), (4500, 0), (12000, -6)))
    return 0.5 * skin + 0.6 * wires * np.exp(-t / (0.25 * length_s))


def clap(rng: Rng) -> Wave:
    """Hands that clap, not quite at once."""
    t = times(0.25)
    shape = sum(np.exp(-np.abs(t - s) / 0.004) for s in (0.004, 0.014, 0.025))
    shape = shape + 0.6 * np.exp(-np.maximum(0, t - 0.03) / 0.05) * (t > 0.03)
    return shape * noise(rng, 0.25, ((300, -24), (1100, 0), (3000, -4), (9000, -14)))


def cymbal(rng: Rng, length_s: float, decay_s: float, low_hz: float = 6000) -> Wave:
    """A cymbal: a short one is a closed hi-hat, a long one a crash."""
    t = times(length_s)
    hiss = noise(rng, length_s, ((low_hz / 6, -50), (low_hz, 0), (12000, 0), (18000, -10)))
    bell = sum(np.sign(np.sin(2 * np.pi * hz * t)) for hz in (3170, 4230, 5470, 6890))
    metal = filtered(bell, spectrum(((low_hz / 3, -40), (low_hz, 0), (15000, -3))))
    return (0.6 * hiss + 0.12 * metal) * np.exp(-t / decay_s) * _release(length_s, 0.01)


def ride(rng: Rng) -> Wave:
    """A ride cymbal: the stick, and a long shimmer."""
    t = times(0.7)
    ping = sum(np.sin(2 * np.pi * hz * t + hz) for hz in (3450, 4720, 5990, 7350)) * np.exp(
        -t / 0.06
    )
    return 0.3 * ping + 0.5 * cymbal(rng, 0.7, 0.22, 7000)


def _cycles(pitch_hz: Wave, gains: Sequence[float]) -> Wave:
    """Return harmonics of these gains, read from a table of one cycle."""
    turn = np.arange(_CYCLE + 1) / _CYCLE
    table = sum(g * np.sin(2 * np.pi * k * turn) for k, g in enumerate(gains, 1))
    return np.interp(np.cumsum(pitch_hz) / RATE_HZ % 1, turn, table)


def _saw(pitch_hz: Wave, top_hz: float = 12_000.0) -> Wave:
    count = int(min(60, top_hz / pitch_hz.max()))
    return _cycles(pitch_hz, [1 / k for k in range(1, count + 1)])


def _release(length_s: float, release_s: float, attack_s: float = 0.002) -> Wave:
    return curve(
        length_s, ((0, 0), (attack_s, 1), (max(attack_s, length_s - release_s), 1), (length_s, 0))
    )
