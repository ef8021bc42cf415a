"""Short pieces of music, each in the manner of one genre."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from instruments import (
    amplified,
    bass,
    brass,
    clap,
    cymbal,
    kick,
    organ,
    piano,
    pluck,
    ride,
    snare,
    strings,
    synth_bass,
)
from synthesis import (
    Points,
    Wave,
    compressed,
    faded,
    filtered,
    noise,
    placed,
    room,
    samples,
    spectrum,
)

Rng = np.random.Generator

SEED = 2026
_PLAIN = ((20, 0), (20_000, 0))
Note = tuple[float, float, float]  # beat it begins, MIDI key, beats it lasts


class Band:
    """Plays parts in one tempo and mixes them.

    Args:
        beats_a_minute: tempo.
        beats: length of the piece.
        ring_s: what may ring after the last beat.
    """

    def __init__(self, beats_a_minute: float, beats: float, ring_s: float = 0.6) -> None:
        self.beat_s = 60 / beats_a_minute
        self.beats = beats
        self.length_s = beats * self.beat_s + ring_s
        self.mix = np.zeros(samples(self.length_s))

    def part(
        self, gain: float, notes: Sequence[Note], play: Callable[[float, float], Wave]
    ) -> Wave:
        """Mix in notes of what gives the sound of a key and a length in seconds; give it alone."""
        sounds = [(b * self.beat_s, play(key, n * self.beat_s)) for b, key, n in notes]
        wave = placed(self.length_s, sounds)
        self.mix += gain * wave
        return wave

    def drum(self, gain: float, beats: Sequence[float], stroke: Callable[[], Wave]) -> None:
        """Mix in strokes of a drum."""
        self.mix += gain * placed(self.length_s, [(b * self.beat_s, stroke()) for b in beats])

    def master(
        self, rng: Rng, decay_s: float, wet: float, even: float, colour: Points = _PLAIN
    ) -> Wave:
        """Return the mix in a room, evened out, coloured (Hz, dB), with the hiss of a tape."""
        wave = compressed(room(rng, self.mix, decay_s, wet), even)
        hiss = noise(rng, self.length_s, ((50, 0), (300, -6), (3000, -16), (12000, -24)))
        return filtered(wave / wave.std() + 0.01 * hiss, spectrum(colour))

    def every(self, step: float, begin: float = 0.0) -> list[float]:
        """Return the beats from one on, so far apart, to the end."""
        return list(np.arange(begin, self.beats - 1e-6, step))


def metal(rng: Rng) -> Wave:
    """Metal: distorted fifths picked as fast as can be, and a double bass drum."""
    band = Band(176, 24)
    roots = (40, 40, 43, 45, 40, 46)

    def guitar(key: float, length_s: float) -> Wave:
        return sum(pluck(rng, key + up, length_s, 0.9, 2) for up in (0, 7, 12))

    picked = [(b, roots[int(b // 4)] + (3 if b % 4 == 3.5 else 0), 0.3) for b in band.every(0.25)]
    held = [(4 * bar, roots[bar] + 12, 3.9) for bar in range(6)]
    for notes, drive in ((picked, 12), (picked, 16), (held, 20)):
        band.mix += 0.4 * amplified(band.part(0, notes, guitar), drive)
    low = [(b, key - 12, 0.48) for b, key, _ in picked[::2]]
    band.part(0.6, low, lambda k, s: np.tanh(3 * bass(rng, k, s)))
    band.drum(0.7, band.every(0.25), lambda: kick(0.12, 220, 60))
    band.drum(0.7, band.every(2, 1), lambda: snare(rng, 0.25))
    band.drum(0.12, band.every(1), lambda: cymbal(rng, 1.2, 0.5, 3500))
    scooped = ((60, 1), (150, 7), (300, 0), (700, -6), (1500, -4), (3000, 0), (6000, 4))
    return band.master(rng, 0.5, 0.2, 0.5, scooped)


def disco(rng: Rng) -> Wave:
    """Disco: four to the floor, open hi-hats between, a bass in octaves, strings above."""
    band = Band(122, 16)
    roots = (45, 45, 41, 43)
    low = [(b, roots[int(b // 4)] - 12 + 12 * (b % 1 > 0), 0.47) for b in band.every(0.5)]
    band.part(0.5, low, lambda k, s: bass(rng, k, s))
    band.drum(0.9, band.every(1), lambda: kick(0.25))
    band.drum(0.4, band.every(2, 1), lambda: snare(rng))
    band.drum(0.5, band.every(2, 1), lambda: clap(rng))
    band.drum(0.3, band.every(1, 0.5), lambda: cymbal(rng, 0.25, 0.12))
    band.drum(0.15, band.every(0.25), lambda: cymbal(rng, 0.1, 0.04))
    chords = ((57, 60, 64, 67), (57, 60, 64, 67), (57, 60, 65, 69), (59, 62, 67, 71))
    pad = [(4 * bar, key, 3.95) for bar in range(4) for key in chords[bar]]
    band.part(0.05, pad, lambda k, s: piano(k, s) + 0.5 * organ(k, s))
    hits = (0.0, 0.5, 0.75, 1.5, 1.75, 2.25, 2.5, 3.25, 3.5)
    chops = [(4 * bar + b, key + 12, 0.22) for bar in range(4) for b in hits for key in chords[bar]]
    guitar = band.part(0, chops, lambda k, s: pluck(rng, k, s, 0.9))
    band.mix += 0.15 * filtered(guitar, spectrum(((200, -20), (900, 0), (6000, 0))))
    tune = (
        (0, 76, 1.5),
        (1.5, 74, 0.5),
        (2, 72, 2),
        (4, 76, 1.5),
        (5.5, 79, 0.5),
        (6, 81, 2),
        (8, 77, 1.5),
        (9.5, 76, 0.5),
        (10, 72, 2),
        (12, 74, 2),
        (14, 79, 2),
    )
    for octave in (0, 12):
        high = [(b, key + octave, n) for b, key, n in tune]
        band.part(0.06, high, lambda k, s: strings(rng, k, s, 0.04))
    return band.master(rng, 0.8, 0.35, 0.5, ((1000, 0), (3000, 3), (8000, 6)))


def reggae(rng: Rng) -> Wave:
    """Reggae: chords after the beat, a deep bass, and the drum on the third beat."""
    band = Band(148, 20)
    chords = ((57, 60, 64), (57, 60, 64), (62, 65, 69), (62, 65, 69), (57, 60, 64))
    skank = [
        (4 * bar + b, key + 12, 0.4) for bar in range(5) for b in (1, 3) for key in chords[bar]
    ]
    guitar = band.part(0, skank, lambda k, s: pluck(rng, k, s, 0.8))
    guitar = filtered(guitar, spectrum(((200, -20), (700, 0), (5000, 0))))
    echo = samples(1.5 * band.beat_s)
    guitar[echo:] += 0.3 * guitar[:-echo]
    band.mix += 0.5 * guitar
    bubble = [(b + h, k - 12, 0.45) for b, k, _ in skank for h in (-0.5, 0, 0.5)]
    band.part(0.05, bubble, organ)
    band.part(0.02, [(4 * bar, k, 3.95) for bar in range(5) for k in chords[bar]], organ)
    walk = ((0, 0, 1.4), (1.5, 0, 0.45), (2, 3, 0.9), (3, 7, 0.9))
    low = [(4 * bar + b, (33, 33, 38, 38, 33)[bar] + k, n) for bar in range(5) for b, k, n in walk]
    band.part(1.2, low, lambda k, s: bass(rng, k, s))
    band.drum(0.8, band.every(4, 2), lambda: kick(0.3))
    band.drum(0.4, band.every(4, 2), lambda: snare(rng, 0.15))
    band.drum(0.1, band.every(1) + band.every(1, 0.6), lambda: cymbal(rng, 0.1, 0.04))
    return band.master(rng, 0.7, 0.35, 0.45)


def hiphop(rng: Rng) -> Wave:
    """Hip-hop: a heavy slow beat, a bass that booms, a loop from an old record."""
    band = Band(92, 14)
    beats = [4 * bar + b for bar in range(4) for b in (0, 0.75, 2.5) if 4 * bar + b < 14]
    band.drum(1.1, beats, lambda: kick(0.5, 130, 45))
    band.drum(0.5, band.every(2, 1), lambda: snare(rng, 0.3))
    band.drum(0.4, band.every(2, 1), lambda: clap(rng))
    late = [b + 0.06 * (k % 2) for k, b in enumerate(band.every(0.5))]
    band.drum(0.2, late, lambda: cymbal(rng, 0.1, 0.04))
    roots = (33, 33, 29, 31)
    low = [(b, roots[int(b // 4)] + 12, 1.4) for b in beats]
    band.part(0.4, low, synth_bass)
    loop = ((0, 69, 0.5), (0.5, 72, 0.5), (1.5, 76, 0.5), (2, 75, 1), (3, 72, 0.9))
    notes = [(4 * bar + b, k, n) for bar in range(4) for b, k, n in loop if 4 * bar + b < 14]
    pad = [(4 * bar, roots[bar] + up, 3.9) for bar in range(3) for up in (24, 27, 31)]
    old = band.part(0, notes, piano) + 0.3 * band.part(0, pad, lambda k, s: strings(rng, k, s))
    band.mix += 0.7 * filtered(old, spectrum(((150, -20), (400, 0), (2500, -4), (5000, -40))))
    return band.master(rng, 0.4, 0.2, 0.5)


def jazz(rng: Rng) -> Wave:
    """Jazz: a ride cymbal that swings, a walking bass, piano chords, a trumpet."""
    band = Band(140, 20)
    third = 2 / 3
    walk = (50, 53, 57, 59, 55, 59, 62, 61, 60, 64, 67, 64, 60, 57, 55, 52, 50, 53, 57, 60)
    dull = spectrum(((40, 0), (250, 0), (700, -8), (2000, -28)))
    low = [(b, key - 12, 0.95) for b, key in enumerate(walk)]
    band.part(1.1, low, lambda k, s: filtered(pluck(rng, k, s, 0.2, 1.2), dull))
    swing = [b + h for b in band.every(2) for h in (0, 1, 1 + third)]
    band.drum(0.05, swing, lambda: ride(rng))
    band.drum(0.05, band.every(2, 1), lambda: cymbal(rng, 0.08, 0.03))
    keys = (
        (53, 57, 60, 64),
        (53, 57, 59, 64),
        (52, 55, 59, 62),
        (52, 55, 60, 64),
        (53, 57, 60, 64),
    )
    hits = ((0, 0.6), (third, 1.2), (2, 0.6), (2 + third, 1.3))
    comp = [(4 * k + b, key, n) for k, chord in enumerate(keys) for b, n in hits for key in chord]
    band.part(0.12, comp, piano)
    tune = (
        (0, 69, 1),
        (1, 72, third),
        (1 + third, 74, 1),
        (3, 72, third),
        (3 + third, 71, 1.2),
        (5, 67, third),
        (5 + third, 69, third),
        (6 + third, 71, 1.3),
        (8, 67, 1.6),
        (10, 64, third),
        (10 + third, 67, third),
        (11.333, 71, third),
        (12, 72, 1.6),
        (14, 69, third),
        (14 + third, 67, 1),
        (16, 69, 3.5),
    )
    mute = spectrum(((150, -4), (900, 0), (1800, 0), (3500, -14), (8000, -40)))
    band.mix += 0.06 * filtered(band.part(0, tune, lambda k, s: brass(rng, k, s)), mute)
    return band.master(rng, 1.0, 0.4, 0.3)


def classical(rng: Rng) -> Wave:
    """Classical: strings; two parts move, the others stride below them."""
    band = Band(92, 14, 1.2)
    first = (
        74,
        78,
        81,
        78,
        76,
        79,
        83,
        79,
        78,
        81,
        86,
        81,
        79,
        78,
        76,
        74,
        73,
        76,
        79,
        76,
        74,
        78,
        81,
        78,
    )
    second = (66, 69, 71, 74, 69, 67, 66, 64, 64, 62, 69, 66)
    third = (57, 62, 62, 64, 66, 62, 62, 59, 57, 57, 57, 57)
    low = (50, 50, 55, 55, 50, 55, 57, 43, 45, 45, 50, 42)
    tune = [(k / 2, key, 0.55) for k, key in enumerate(first)] + [(12, 74, 2)]
    band.part(0.16, tune, lambda k, s: strings(rng, k, s, 0.05))
    for gain, keys, last in ((0.13, second, 66), (0.13, third, 57), (0.2, low, 38)):
        notes = [(k, key, 1.0) for k, key in enumerate(keys)] + [(12, last, 2)]
        band.part(gain, notes, lambda k, s: strings(rng, k, s + 0.05, 0.07))
    return band.master(rng, 2.0, 0.8, 0.0, ((60, 0), (300, -4), (800, 2), (3000, 4), (8000, 8)))


def blues(rng: Rng) -> Wave:
    """Blues: a shuffle of guitar and bass, an organ behind, and a guitar that sings."""
    band = Band(96, 14)
    third = 2 / 3
    roots = (40, 40, 45, 40)
    shuffle = [
        (beat + b, roots[beat // 4] + up, n)
        for beat in range(14)
        for b, n in ((0, third), (third, 0.33))
        for up in (0, (7, 9)[beat % 2])
    ]
    guitar = band.part(0, shuffle, lambda k, s: pluck(rng, k, s, 0.6, 1))
    band.mix += 0.5 * filtered(guitar, spectrum(((80, 0), (400, 0), (3000, -10), (6000, -30))))
    walk = [(b, roots[b // 4] - 12 + (0, 4, 7, 9)[b % 4], 0.95) for b in range(14)]
    band.part(0.6, walk, lambda k, s: bass(rng, k, s))
    pad = [(4 * bar, roots[bar] + up, 3.95) for bar in range(4) for up in (12, 16, 19, 22)]
    band.part(0.02, [(b, k, min(n, 14 - b)) for b, k, n in pad], organ)
    lick = (
        (1, 67, 0.6),
        (1 + third, 69, 0.3),
        (2, 71, 0.6),
        (2 + third, 74, 0.3),
        (3, 76, 1.9),
        (5, 79, 0.6),
        (5 + third, 76, 0.3),
        (6, 74, 0.6),
        (6 + third, 71, 0.3),
        (7, 69, 0.6),
        (7 + third, 67, 1.3),
        (9, 76, third),
        (9 + third, 74, 0.3),
        (10, 73, 0.6),
        (10 + third, 69, 0.3),
        (11, 67, 0.6),
        (11 + third, 64, 2.2),
    )
    solo = amplified(band.part(0, lick, lambda k, s: pluck(rng, k - 12, s, 0.8, 4)), 3)
    band.mix += 0.3 * filtered(solo, spectrum(((80, 0), (1000, 0), (3000, -10), (6000, -24))))
    band.drum(0.7, band.every(2), kick)
    band.drum(0.3, band.every(2, 1), lambda: snare(rng))
    band.drum(0.06, band.every(1) + band.every(1, third), lambda: cymbal(rng, 0.1, 0.04))
    return band.master(rng, 0.6, 0.3, 0.4)


def country(rng: Rng) -> Wave:
    """Country: a bass that goes to and fro, a guitar struck between, a banjo and a fiddle."""
    band = Band(116, 16)
    chords = (
        (43, 55, 59, 62, 67),
        (48, 55, 60, 64, 67),
        (50, 57, 62, 66, 69),
        (43, 55, 59, 62, 67),
    )
    low = [(4 * bar + 2 * k, chords[bar][0] - 7 * k, 1.9) for bar in range(4) for k in range(2)]
    band.part(0.7, low, lambda k, s: bass(rng, k, s))
    struck = [
        (4 * bar + b + 0.02 * n, key, 0.9)
        for bar in range(4)
        for b in (0, 1, 2, 2.5, 3)
        for n, key in enumerate(chords[bar][1:])
    ]
    band.part(0.2, struck, lambda k, s: pluck(rng, k, s, 0.9, 3))
    order = (2, 3, 4, 2, 3, 4, 2, 4)
    roll = [(b, chords[int(b // 4)][order[int(2 * b) % 8]] + 12, 0.9) for b in band.every(0.5)]
    band.part(0.2, roll, lambda k, s: pluck(rng, k, s, 1.0, 1.0))
    tune = (
        (0, 74, 1.5),
        (1.5, 76, 0.5),
        (2, 79, 2),
        (4, 76, 2),
        (6, 72, 2),
        (8, 74, 1.5),
        (9.5, 72, 0.5),
        (10, 69, 2),
        (12, 71, 3.5),
    )
    band.part(0.08, tune, lambda k, s: strings(rng, k, s, 0.06))
    band.drum(0.5, band.every(2), lambda: kick(0.2))
    band.drum(0.3, band.every(2, 1), lambda: snare(rng, 0.15))
    band.drum(0.1, band.every(0.5), lambda: cymbal(rng, 0.1, 0.04))
    return band.master(rng, 0.5, 0.25, 0.45)


def rock(rng: Rng) -> Wave:
    """Rock: open chords on a driven guitar, straight eighths, a back beat."""
    band = Band(128, 18)
    roots = (45, 45, 50, 52, 45)
    notes = [(b, roots[int(b // 4)] + up, 0.5) for b in band.every(0.5) for up in (0, 7, 12, 16)]
    guitar = amplified(band.part(0, notes, lambda k, s: pluck(rng, k, s, 0.6, 3)), 4)
    band.mix += 0.6 * filtered(guitar, spectrum(((80, 3), (400, 3), (1500, -5), (6000, -12))))
    low = [(b, roots[int(b // 4)] - 12, 0.5) for b in band.every(0.5)]
    band.part(0.9, low, lambda k, s: bass(rng, k, s))
    band.drum(0.9, band.every(2) + band.every(4, 2.5), kick)
    band.drum(0.7, band.every(2, 1), lambda: snare(rng, 0.3))
    band.drum(0.12, band.every(0.5), lambda: cymbal(rng, 0.3, 0.12))
    tune = (
        (0, 69, 1.5),
        (1.5, 72, 0.5),
        (2, 74, 2),
        (4, 76, 3.5),
        (8, 74, 1.5),
        (9.5, 72, 0.5),
        (10, 69, 2),
        (12, 71, 3.5),
        (16, 69, 2),
    )
    solo = amplified(band.part(0, tune, lambda k, s: pluck(rng, k, s, 0.8, 5)), 6)
    band.mix += 0.12 * solo
    return band.master(rng, 0.6, 0.3, 0.5)


def pop(rng: Rng) -> Wave:
    """Pop: synthesiser chords, a straight beat, a simple tune."""
    band = Band(118, 16)
    chords = ((60, 64, 67), (55, 59, 62), (57, 60, 64), (53, 57, 60))
    pad = [(4 * bar, k, 3.9) for bar in range(4) for k in chords[bar]]
    band.part(0.05, pad, lambda k, s: strings(rng, k, s, 0.05))
    band.part(0.2, [(b, chords[int(b // 4)][0] - 24, 0.45) for b in band.every(0.5)], synth_bass)
    tune = [
        (b + 4 * bar, k, 0.5)
        for bar in range(4)
        for b, k in ((0, 79), (0.5, 76), (1, 79), (1.5, 81), (2.5, 79), (3, 76))
    ]
    band.part(0.15, tune, lambda k, s: piano(k, s + 0.2))
    band.drum(1.0, sorted(band.every(2) + band.every(4, 2.5)), kick)
    band.drum(0.7, band.every(2, 1), lambda: snare(rng) + placed(0.22, [(0, clap(rng))]))
    band.drum(0.2, band.every(0.5), lambda: cymbal(rng, 0.08, 0.03))
    return room(rng, band.mix, 0.5, 0.2)


PIECES: dict[str, Callable[[Rng], Wave]] = {
    play.__name__: play
    for play in (blues, classical, country, disco, hiphop, jazz, metal, pop, reggae, rock)
}
BAND = ("classical", "rock", "disco")


def band() -> list[tuple[str, Wave]]:
    """Return the pieces of the band, with their genres."""
    return [
        (genre, faded(PIECES[genre](np.random.default_rng([SEED, k])), out_s=0.3))
        for k, genre in enumerate(BAND)
    ]
