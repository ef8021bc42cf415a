"""Sounds of a street and a house, each made of what makes it in life."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from synthesis import (
    RATE_HZ,
    Wave,
    blows,
    convolved,
    curve,
    faded,
    filtered,
    formants,
    levelled,
    noise,
    pings,
    placed,
    room,
    scattered,
    spectrum,
    struck,
    times,
    tone,
    wander,
)

Rng = np.random.Generator

SEED = 2026
LENGTH_S = 5.0

_TRAFFIC = ((50, 0), (200, -4), (1000, -14), (5000, -30))  # far away: Hz, dB


def rain(rng: Rng, length_s: float) -> Wave:
    """Rain on leaves and on a roof: a hiss of far drops, and single ones near by."""
    far = noise(
        rng, length_s, ((60, -6), (250, -4), (800, -3), (2500, 0), (6000, -4), (16000, -14))
    )
    near = pings(rng, length_s, 500, (700, 7000), 0.002)
    return far * (1 + 0.05 * wander(rng, length_s, 2)) + 0.7 * near


def sea_waves(rng: Rng, length_s: float) -> Wave:
    """Waves that rise, break and run up the sand."""
    rumble = noise(rng, length_s, ((40, -6), (150, 0), (500, -10), (2000, -40)))
    surge = noise(rng, length_s, ((80, -20), (400, 0), (1200, -4), (6000, -24)))
    foam = noise(rng, length_s, ((300, -30), (2000, -4), (6000, 0), (15000, -10)))
    wave = 0.15 * rumble + 0.08 * surge + 0.02 * foam
    t = times(length_s)
    for crest in np.arange(1.3, length_s + 1, 3.1):
        rise = np.minimum(1, np.exp((t - crest) / 0.45))
        wave += rumble * 0.5 * rise * np.exp(-np.maximum(0, t - crest) / 0.5)
        wave += surge * rise * np.exp(-np.maximum(0, t - crest) / 0.7)
        wave += foam * 0.35 * rise**2 * np.exp(-np.maximum(0, t - crest - 0.3) / 0.9)
    return wave


def siren(rng: Rng, length_s: float) -> Wave:
    """A siren that wails, among the traffic of a street whose houses throw it back."""
    swing = 0.5 - 0.5 * np.cos(2 * np.pi * times(length_s) / 1.8)
    horn = formants((900, 900, 1.0), (1800, 1200, 0.4), (3200, 1500, 0.12), tilt_db=-6)
    wave = tone(600 * (1400 / 600) ** swing, horn, 10)
    return room(rng, wave / wave.std() + 0.3 * noise(rng, length_s, _TRAFFIC), 2.0, 1.5)


def clock_tick(rng: Rng, length_s: float) -> Wave:
    """A clock: the tick and the tock of its escapement, in its case, in a quiet room."""
    parts = []
    t = times(0.06)
    for k, second in enumerate(np.arange(0.1, length_s, 0.5)):
        low = 0.85 if k % 2 else 1.0
        case = formants(
            (1400 * low, 500, 0.8), (2900 * low, 900, 1.0), (5200 * low, 1500, 0.7), tilt_db=-2
        )
        for wait, gain in ((0.0, 0.5), (0.011, 1.0), (0.027, 0.25)):  # it catches, locks, rebounds
            blow = filtered(rng.standard_normal(len(t)) * np.exp(-t / 0.004), case)
            parts.append((second + wait, rng.uniform(0.85, 1.15) * levelled(blow, gain)))
    wave = levelled(room(rng, placed(length_s, parts), 0.2, 0.25), 1.0)
    return wave + 0.02 * noise(rng, length_s, ((60, 0), (500, -8), (5000, -20)))


def helicopter(rng: Rng, length_s: float) -> Wave:
    """A helicopter above: the slap of the blades, and the turbine behind it."""
    beat = 13 * (1 + 0.01 * wander(rng, length_s, 1))
    phase = np.cumsum(beat) / RATE_HZ
    slap = np.exp(2.2 * (np.cos(2 * np.pi * phase) - 1))
    low = noise(rng, length_s, ((30, -4), (70, 0), (160, -3), (400, -12), (1200, -26), (5000, -50)))
    mid = noise(rng, length_s, ((150, -12), (400, 0), (1200, -5), (3500, -16), (9000, -34)))
    thump = tone(beat, spectrum(((13, -14), (40, 0), (90, -2), (200, -14), (500, -40))), 40)
    far = 1 + 0.15 * wander(rng, length_s, 1.5)
    wave = low * (0.3 + 1.2 * slap) + 0.4 * mid * (0.25 + slap) + 0.5 * thump / thump.std()
    whine = tone(np.full(len(wave), 640.0), formants((1300, 1500, 1.0)), 6)
    return room(rng, far * wave + 0.05 * whine / whine.std(), 0.5, 0.2)


def jackhammer(rng: Rng, length_s: float) -> Wave:
    """A jackhammer: fourteen blows a second of steel on stone, and the air that drives it."""
    seconds = np.cumsum(rng.normal(1 / 14, 0.001, int(14 * length_s)))
    hits = blows(length_s, [(s, rng.uniform(0.8, 1.1)) for s in seconds])
    steel = struck(
        hits,
        (
            (410, 0.012, 0.6),
            (870, 0.012, 0.8),
            (1330, 0.014, 1.0),
            (2140, 0.012, 0.9),
            (3050, 0.01, 0.8),
            (4400, 0.008, 0.5),
            (6100, 0.006, 0.4),
        ),
    )
    thump = struck(hits, ((70, 0.02, 1.0), (130, 0.018, 0.8), (230, 0.012, 0.5)))
    t = times(0.08)
    puff = convolved(hits, np.minimum(1, t / 0.001) * np.exp(-t / 0.018))
    stone = noise(rng, length_s, ((80, -4), (300, 0), (1500, 0), (4000, -6), (14000, -22)))
    air = noise(rng, length_s, ((50, 0), (300, -6), (3000, -12), (12000, -24)))
    wave = steel / steel.std() + thump / thump.std() + stone * puff / puff.std() + 0.35 * air
    return room(rng, wave, 0.5, 0.35)


def drilling(rng: Rng, length_s: float) -> Wave:
    """A hammer drill in a wall: the whine of its motor, and the hammering."""
    load = curve(length_s, ((0, 0.5), (0.4, 1.0), (0.7, 0.9), (length_s, 0.88)))
    pitch = 430 * load * (1 + 0.006 * wander(rng, length_s, 12))
    whine = tone(pitch, formants((900, 600, 0.6), (2600, 1500, 1.0), (5200, 2500, 0.8), tilt_db=-2))
    chatter = 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * np.cumsum(47 * load) / RATE_HZ))
    grit = noise(rng, length_s, ((100, -18), (800, -6), (3000, 0), (7000, -2), (15000, -12)))
    wave = 0.25 * whine + grit * (0.25 + 0.5 * chatter)
    return room(rng, wave, 0.35, 0.3)


def car_horn(rng: Rng, length_s: float) -> Wave:
    """A car that sounds its horn: two notes at once."""
    t = times(length_s)
    gate = np.zeros(len(t))
    for begin, end in ((0.0, 0.9), (1.2, 1.6), (1.9, 2.8), (3.1, 3.5), (3.8, length_s - 0.3)):
        gate += np.clip((t - begin) / 0.015, 0, 1) * np.clip((end - t) / 0.03, 0, 1)
    plate = formants((1000, 700, 0.7), (2000, 1200, 1.0), (3100, 1500, 0.7), tilt_db=-1)
    drift = 1 + 0.001 * wander(rng, length_s, 4)
    horn = sum(tone(hz * drift, plate, 40) for hz in (400.0, 480.0))
    wave = gate * horn / horn.std() + 0.1 * noise(rng, length_s, _TRAFFIC)
    return room(rng, wave, 0.8, 0.3)


def gun_shot(rng: Rng, length_s: float) -> Wave:
    """Shots in the open: the crack, the blast and what hills throw back."""

    def shot() -> Wave:
        t = times(1.4)
        crack = noise(rng, 1.4, ((100, -10), (1000, 0), (12000, -3))) * np.exp(-t / 0.008)
        blast = noise(rng, 1.4, ((40, -3), (150, 0), (800, -3), (4000, -12), (12000, -24)))
        tail = noise(rng, 1.4, ((40, -6), (200, 0), (1200, -5), (5000, -22)))
        tail *= np.minimum(1, t / 0.04) * np.exp(-t / 0.22)
        return np.tanh(3 * crack + 2.5 * blast * np.exp(-t / 0.06)) + 0.16 * tail

    parts = [(s, shot() * rng.uniform(0.85, 1.0)) for s in np.arange(0.05, length_s - 0.7, 1.1)]
    return room(rng, placed(length_s, parts), 1.2, 0.35)


def dog_bark(rng: Rng, length_s: float) -> Wave:
    """A small dog that barks, twice at a time."""
    throat = formants((750, 350, 1.0), (1500, 400, 0.8), (2800, 700, 0.4), tilt_db=-4)
    parts = []
    for begin, wait in product(np.arange(0.0, length_s - 0.6, 0.95), (0.0, 0.36)):
        rise = ((0, 0.7), (0.035, 1.0), (0.084, 0.9), (0.14, 0.6))
        pitch = rng.uniform(760, 840) * curve(0.14, rise) * (1 + 0.005 * wander(rng, 0.14, 100))
        voice, breath = tone(pitch, throat), filtered(rng.standard_normal(len(pitch)), throat)
        shape = curve(0.14, ((0, 0), (0.012, 0.7), (0.028, 1), (0.07, 0.7), (0.14, 0)))
        parts.append((begin + wait, shape * (voice / voice.std() + 0.3 * breath / breath.std())))
    return room(rng, placed(length_s, parts), 0.3, 0.3)


def rooster(rng: Rng, length_s: float) -> Wave:
    """A rooster that crows: three short hoarse cries, and a long one that falls."""
    crow = (
        (0.00, 0.16, 0.7, ((0, 560), (0.06, 700), (0.16, 600))),
        (0.24, 0.15, 0.6, ((0, 640), (0.06, 760), (0.15, 700))),
        (0.44, 0.30, 0.4, ((0, 700), (0.08, 880), (0.30, 850))),
        (0.76, 1.10, 0.2, ((0, 800), (0.10, 930), (0.70, 900), (0.95, 780), (1.10, 520))),
    )
    beak = formants((900, 500, 0.8), (1900, 900, 1.0), (2900, 1000, 0.7), tilt_db=-3)
    parts = []
    for again in np.arange(0.05, length_s - 1.5, 2.2):
        for second, length, hoarse, points in crow:
            pitch = curve(length, points) * (1 + 0.03 * hoarse * wander(rng, length, 160))
            cry = tone(pitch, beak, 25)
            shape = curve(length, ((0, 0), (0.02, 1), (length - 0.06, 0.8), (length, 0)))
            rasp = filtered(rng.standard_normal(len(cry)), beak)
            parts.append((again + second, shape * (cry / cry.std() + hoarse * rasp / rasp.std())))
    return room(rng, placed(length_s, parts), 0.4, 0.25)


def baby_cry(rng: Rng, length_s: float) -> Wave:
    """A baby that cries: half a second of voice, a breath, and again."""
    mouth = formants(
        (1000, 600, 1.0), (2000, 800, 0.7), (3300, 900, 0.7), (4800, 1200, 0.4), tilt_db=-2
    )
    parts = []
    for second in np.arange(0.05, length_s - 0.8, 0.9):
        cry_s = rng.uniform(0.54, 0.62)
        rise = [
            (cry_s * at, up)
            for at, up in ((0, 0.78), (0.15, 1), (0.5, 1.04), (0.8, 0.92), (1, 0.7))
        ]
        pitch = rng.uniform(430, 470) * curve(cry_s, rise) * (1 + 0.012 * wander(rng, cry_s, 60))
        voice, rasp = tone(pitch, mouth), filtered(rng.standard_normal(len(pitch)), mouth)
        shape = curve(
            cry_s, ((0, 0), (0.06, 0.8), (0.3 * cry_s, 1), (0.8 * cry_s, 0.8), (cry_s, 0))
        )
        parts.append((second, shape * (voice / voice.std() + 0.15 * rasp / rasp.std())))
        breath = noise(rng, 0.2, ((300, -20), (1500, 0), (4000, -4), (9000, -20)))
        parts.append((second + cry_s + 0.05, 0.12 * breath * np.hanning(len(breath))))
    return room(rng, placed(length_s, parts), 0.3, 0.2)


def fire_crackling(rng: Rng, length_s: float) -> Wave:
    """A wood fire: it crackles, and roars softly."""
    roar = noise(rng, length_s, ((40, 0), (150, -2), (500, -12), (2000, -26), (9000, -40)))
    hiss = noise(rng, length_s, ((500, -14), (3000, 0), (10000, -4)))
    wave = 0.5 * roar * (1 + 0.25 * wander(rng, length_s, 6)) + 0.08 * hiss
    grain = noise(rng, length_s, ((300, -6), (1500, 0), (9000, -2)))
    for rate_hz, decay_s, gain in ((30, 0.0012, 0.6), (9, 0.004, 1.0), (1.5, 0.02, 1.2)):
        t = times(7 * decay_s)
        cracks = convolved(np.abs(scattered(rng, length_s, rate_hz, 0.9)), np.exp(-t / decay_s))
        wave += gain * grain * cracks
    return room(rng, wave, 0.2, 0.15)


def chainsaw(rng: Rng, length_s: float) -> Wave:
    """A chainsaw: a two-stroke engine that is revved, and the chain in the wood."""
    revs = curve(
        length_s,
        ((0, 95), (0.4, 150), (length_s * 0.5, 138), (length_s * 0.55, 155), (length_s, 140)),
    )
    revs = revs * (1 + 0.02 * wander(rng, length_s, 15))
    muffler = formants(
        (350, 300, 0.9), (900, 500, 1.0), (1900, 900, 0.7), (3800, 2000, 0.5), tilt_db=-2
    )
    engine = tone(revs, muffler, 80)
    engine /= engine.std()
    firing = 0.5 + 0.5 * np.sin(2 * np.pi * np.cumsum(revs) / RATE_HZ)
    chain = noise(rng, length_s, ((200, -20), (1500, -3), (4000, 0), (9000, -6), (16000, -20)))
    return room(
        rng, engine * (1 + 0.15 * wander(rng, length_s, 30)) + 0.6 * chain * firing, 0.4, 0.2
    )


def engine_idling(rng: Rng, length_s: float) -> Wave:
    """An engine that idles: explosions, no two alike, and the clatter of its valves."""
    seconds = np.cumsum(rng.normal(1 / 26, 0.0012, int(26 * length_s)))
    strength = 1 + 0.25 * np.tile([0.4, -0.3, 0.2, -0.3], len(seconds))[: len(seconds)]
    bangs = blows(
        length_s, list(zip(seconds, strength * rng.uniform(0.85, 1.1, len(seconds)), strict=True))
    )
    pipe = struck(
        bangs,
        (
            (52, 0.03, 1.0),
            (98, 0.02, 0.8),
            (180, 0.012, 0.5),
            (340, 0.008, 0.3),
            (620, 0.004, 0.15),
        ),
    )
    t = times(0.03)
    puff = convolved(bangs, np.exp(-t / 0.006))
    clatter = noise(rng, length_s, ((200, -12), (700, 0), (2500, -6), (6000, -20)))
    hum = noise(rng, length_s, ((40, 0), (120, -2), (500, -14), (3000, -30)))
    return pipe / pipe.std() + 0.25 * clatter * (0.3 + puff) + 0.5 * hum


def air_conditioner(rng: Rng, length_s: float) -> Wave:
    """An air conditioner: the hum of the compressor and the air of the fan."""
    air = noise(rng, length_s, ((50, 0), (250, -2), (900, -10), (3000, -20), (10000, -38)))
    hum = tone(
        np.full(len(air), 59.0),
        spectrum(((50, -10), (120, 0), (240, -8), (480, -16), (2000, -40))),
        20,
    )
    return air * (1 + 0.02 * wander(rng, length_s, 5)) + 0.35 * hum / hum.std()


def person_sneeze(rng: Rng, length_s: float) -> Wave:
    """A person who sneezes: the breath in, the burst and what is left of the voice."""
    ah = formants((750, 200, 1.0), (1200, 250, 0.7), (2600, 400, 0.3), tilt_db=-6)
    oo = formants((380, 150, 1.0), (950, 250, 0.5), (2400, 500, 0.15), tilt_db=-6)

    def sneeze() -> Wave:
        gasp = filtered(rng.standard_normal(len(times(0.35))), ah)
        gasp *= curve(0.35, ((0, 0), (0.25, 1), (0.35, 0))) / gasp.std()
        voice = tone(curve(0.12, ((0, 210), (0.12, 260))), ah)
        voice *= np.hanning(len(voice)) / voice.std()
        burst = noise(rng, 0.3, ((200, -14), (1200, -6), (3500, 0), (8000, -4), (16000, -16)))
        burst *= curve(0.3, ((0, 0), (0.012, 1), (0.1, 0.6), (0.3, 0)))
        after = tone(curve(0.4, ((0, 330), (0.1, 290), (0.4, 180))), oo)
        after *= curve(0.4, ((0, 0), (0.04, 1), (0.15, 0.6), (0.4, 0))) / after.std()
        return placed(
            1.2, ((0.0, 0.2 * gasp), (0.33, 0.4 * voice), (0.46, 1.6 * burst), (0.54, 1.0 * after))
        )

    parts = [(s, sneeze()) for s in np.arange(0.05, length_s - 0.9, 1.5)]
    return room(rng, placed(length_s, parts), 0.4, 0.3)


MAKERS: dict[str, Callable[[Rng, float], Wave]] = {
    make.__name__.replace("_", " "): make
    for make in (
        rain,
        sea_waves,
        siren,
        clock_tick,
        helicopter,
        jackhammer,
        drilling,
        car_horn,
        gun_shot,
        dog_bark,
        rooster,
        baby_cry,
        fire_crackling,
        chainsaw,
        engine_idling,
        air_conditioner,
        person_sneeze,
    )
}
STREET = ("dog bark", "siren", "baby cry", "gun shot", "car horn", "drilling")


def street() -> list[tuple[str, Wave]]:
    """Return the sounds of the scene, with their labels."""
    return [
        (label, faded(MAKERS[label](np.random.default_rng([SEED, k]), LENGTH_S)))
        for k, label in enumerate(STREET)
    ]
