"""The card of a machine: rows made from the tables of steps."""

from __future__ import annotations

import pytest

from costream.__main__ import main
from costream.bench import card
from costream.core.tables import Table


def steps(*rows, median="median us", more=()):
    return Table("a network", ("way", *more, median), rows)


def test_a_row_has_the_time_and_its_ratios():
    windows = [(name, us) for name, us in zip(card._WINDOWS, (300.0, 200.0), strict=True)]
    encoder = steps(("costream", 50.0), *windows, ("bound: weights times one row", 40.0))
    assert card.encoder_row(encoder)[1:] == (
        "50 us",
        "1.25 of its weights times one row; 0.25 of the window",
    )
    skeleton = steps(
        ("costream", 2, 4000.0),
        ("continual-inference", None, None),
        ("the clip recomputed", 2, 80_000.0),
        ("bound: its products, 2 there", 2, 3200.0),
        ("bound: its products, 1 there", 1, 1600.0),
        more=("persons",),
    )
    assert card.skeleton_row(skeleton)[1:] == ("4 ms", "1.25 of its products; clip 20x slower")
    sound = steps(("costream", 400.0), ("a window", 1200.0), ("a context", 2000.0))
    assert "window 3.0x slower" in card.sound_row(sound)[2]
    assert "5.0x" in card.sound_row(sound)[2]
    pictures = steps(
        ("dense float32", 1764, 1000.0),
        ("costream", 256, 200.0),
        ("costream", 512, 400.0),
        median="median ms",
        more=("tokens",),
    )
    name, *cells = card.picture_row(pictures)
    assert (name, cells) == ("Eventful ViTDet, 256 of 1764 tokens", ["200 ms", "0.20 of dense"])


@pytest.mark.parametrize("share", [False, True])
def test_a_card_is_printed_to_be_read_or_to_be_shared(share, monkeypatch, capsys):
    table = Table("card: a processor", ("work", "time"), (("a step", "5 us"),), ("2 cores",))
    monkeypatch.setattr(card, "card_table", lambda *_: table)
    assert main(["bench", "card", *["--share"] * share]) == 0
    printed = capsys.readouterr().out
    assert ("| a step | 5 us |\n\n2 cores" in printed) is share
    assert "a step" in printed
