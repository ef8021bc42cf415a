"""The teacher of the audio backbone: windows of a sound, and what is in them."""

from __future__ import annotations

import pytest

from costream.core.records import AudioFormat
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.paths import SAMPLES
from kit.reading import contents
from weights.recipes.audio.teacher import CLASSES, HOP, WIDTH, WINDOW, Mn04

RATE_HZ = 16_000


def test_the_teacher_hears_the_sounds_of_a_street_window_by_window() -> None:
    pytest.importorskip("soxr")
    options = SourceOptions(sound=AudioFormat(RATE_HZ, RATE_HZ))
    wave = contents(open_source(str(SAMPLES / "street.ogg"), options)).samples[: 20 * RATE_HZ]
    teacher = Mn04()
    said = teacher(wave)
    windows = (len(wave) - WINDOW) // HOP + 1
    assert (said.features.shape, said.logits.shape) == ((windows, WIDTH), (windows, CLASSES))
    for second, name in ((4, "Dog"), (10, "Siren"), (17, "Baby cry, infant cry")):
        row = said.logits[int((second - 0.75) * RATE_HZ / HOP)]
        assert name in [teacher.classes[k] for k in (-row).argsort()[:5]]
    quiet = teacher(wave / 100)
    assert abs(quiet.logits - said.logits).max() < 0.1  # at a standard level
