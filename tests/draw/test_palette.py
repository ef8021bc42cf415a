"""Palette: colours of labels are stable and distinguishable."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from costream.draw.palette import BACKGROUND, COLORS, PATTERNS, Palette

# How people without one kind of cones see linear RGB: Machado, Oliveira and Fernandes (2009),
# severity 1.0.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(color):
    c = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def ciede2000(one, two):
    """Difference of two colours in CIELAB (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, two
    mean_c = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 0.5 * (1 - np.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    c1, c2 = np.hypot(a1 * (1 + g), b1), np.hypot(a2 * (1 + g), b2)
    h1 = np.degrees(np.arctan2(b1, a1 * (1 + g))) % 360
    h2 = np.degrees(np.arctan2(b2, a2 * (1 + g))) % 360
    turn = (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    ml, mc = (l1 + l2) / 2, (c1 + c2) / 2
    mh = (h1 + h2) / 2 if abs(h1 - h2) <= 180 else ((h1 + h2 + 360) / 2) % 360
    t = (
        1
        - 0.17 * np.cos(np.radians(mh - 30))
        + 0.24 * np.cos(np.radians(2 * mh))
        + 0.32 * np.cos(np.radians(3 * mh + 6))
        - 0.20 * np.cos(np.radians(4 * mh - 63))
    )
    sl = 1 + 0.015 * (ml - 50) ** 2 / np.sqrt(20 + (ml - 50) ** 2)
    sc, sh = 1 + 0.045 * mc, 1 + 0.015 * mc * t
    around_blue = np.exp(-(((mh - 275) / 25) ** 2))
    rc = 2 * np.sqrt(mc**7 / (mc**7 + 25**7))
    rt = -np.sin(np.radians(60 * around_blue)) * rc
    squares = (dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2
    return float(np.sqrt(squares + rt * (dc / sc) * (dh / sh)))


def test_the_measure_agrees_with_published_pairs():
    # From the table of Sharma, Wu and Dalal.
    assert ciede2000((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50, 2.5, 0), (58, 24, 15)) == pytest.approx(19.4535, abs=1e-4)


@pytest.mark.parametrize("vision", VISION)
def test_all_colours_are_distinguished(vision):
    seen = [lab(np.array(VISION[vision]) @ linear(color)) for color in COLORS]
    assert min(ciede2000(a, b) for a, b in combinations(seen[:8], 2)) > 14
    assert min(ciede2000(a, b) for a, b in combinations(seen, 2)) > 7


def test_letters_are_read_on_every_colour():
    palette = Palette()
    labels = [str(k) for k in range(len(COLORS))]
    palette.add(labels, labels, ())
    for label in labels:
        paint = palette.paint(label)
        light = sorted(float(linear(c) @ XYZ[1]) for c in (paint.color, paint.ink))
        assert (light[1] + 0.05) / (light[0] + 0.05) > 4.5, paint


def test_a_label_has_its_colour_in_every_report():
    labels = ["none", "walk", "sit", "fall"]
    alone, all_of_them = Palette(), Palette()
    alone.add(labels, ["fall"], ["none"])
    all_of_them.add(labels, labels, ["none"])
    assert alone.paint("fall") == all_of_them.paint("fall")
    assert alone.paint("none") == alone.paint("never heard of") == BACKGROUND


def test_no_two_labels_look_alike_while_there_are_paints():
    palette = Palette()
    first, second = [f"a{k}" for k in range(400)], [f"b{k}" for k in range(12)]
    shown = first[::20]
    palette.add(first, shown, ())
    palette.add(second, second, ())
    paints = [palette.paint(label) for label in [*shown, *second]]
    assert len({(p.color, p.pattern) for p in paints}) == len(paints)
    assert len(paints) == 8 * len(PATTERNS)
    assert [palette.paint(label).color for label in shown[:4]] == [COLORS[k] for k in (0, 4, 8, 12)]
    palette.add(["one too many"], ["one too many"], ())
    assert palette.paint("one too many").color is not None
