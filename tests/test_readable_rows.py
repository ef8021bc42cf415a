"""One label for each piece of music, in what people read; records keep every segment."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costream
from costream.core.readable import NO_MUSIC, PAUSE_S, UNKNOWN, WAIT_S, MusicPieces, ReadableRows
from costream.core.records import Head, Header, Segment, Summary
from costream.report.run_summary import RunSummary
from costream.ui.timeline import FinalTimeline
from kit.paths import SAMPLES
from kit.runs import records, rows, run
from kit.shown import console, written

GENRES = ("rock", "jazz", NO_MUSIC)
ABOUT = ("0.1.0", "cotrans", "0" * 64, GENRES, NO_MUSIC, 4.0, 0.5)
HEADER = Header(*ABOUT, "song.ogg", "audio", 60.0, {})
HEADS = replace(
    HEADER,
    labels=(*GENRES, "dog", "other"),
    background=None,
    heads=(
        Head("cotrans", "0" * 64, GENRES, NO_MUSIC, 0.5, 0.5),
        Head("cosounds", "0" * 64, ("dog", "other"), "other", 0.5, 0.5),
    ),
)
SUMMARY = Summary(240, 4, 0, 0, 60.0, 1.0, 60.0, 0, 0, True, 0)
SONG = (
    Segment(2.0, 8.0, "rock", 0.8),
    Segment(8.5, 10.5, "jazz", 0.9),
    Segment(11.5, 13.5, "rock", 0.6),
    Segment(14.75, 20.75, "jazz", 0.7),  # after a pause
)
DOGS = (Segment(3.0, 4.0, "dog", 0.9, "cosounds"), Segment(4.5, 5.5, "dog", 0.8, "cosounds"))
BOTH = sorted((*(replace(s, model="cotrans") for s in SONG), *DOGS), key=lambda s: s.end_s)


def pieces(header: Header, *segments: Segment) -> list[Segment]:
    joined = MusicPieces(header)
    return [piece for segment in segments for piece in joined.add(segment)] + joined.rest()


Row = tuple[str, ...]


def table(header: Header, *segments: Segment) -> list[Row]:
    """Return the rows that a terminal shows; fail unless ``print`` shows the same."""
    target = console()
    view = FinalTimeline(target, "song.ogg")
    view.open(header)
    for segment in segments:
        view.write(segment)
    view.close(SUMMARY)
    shown = table_rows(written(target))
    assert table_rows(str(costream.Results(header, segments, SUMMARY)).splitlines()) == shown
    return shown


def table_rows(lines: Iterable[str]) -> list[Row]:
    """Return start, end, label and score of the rows of a table."""
    cells = (line.split() for line in lines if line.lstrip().startswith("0:"))
    return [(*row[:2], *row[-2:]) for row in cells]


def test_a_piece_has_the_label_of_most_seconds_times_score() -> None:
    first, second = pieces(HEADER, *SONG)
    share = (6.0 * 0.8 + 2.0 * 0.6) / (6.0 + 2.0 + 2.0)
    assert first == Segment(2.0, 13.5, "rock", pytest.approx(share))
    assert second is SONG[3]
    assert pieces(HEADER) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.25, 0.5, PAUSE_S, 1.25, 3.0]),
            st.sampled_from([0.0, 0.25, 1.0, 7.5]),
            st.sampled_from(GENRES[:2]),
            st.floats(0.0, 1.0) | st.just(float("nan")),
        )
    )
)
def test_pieces_are_apart_and_cover_their_segments(
    drawn: list[tuple[float, float, str, float]],
) -> None:
    segments, end_s = [], 0.0
    for pause_s, length_s, label, score in drawn:
        segments.append(Segment(end_s + pause_s, end_s + pause_s + length_s, label, score))
        end_s = segments[-1].end_s
    found = pieces(HEADER, *segments)
    assert all(b.start_s - a.end_s > PAUSE_S for a, b in pairwise(found))
    covered = 0
    for piece in found:
        own = [s for s in segments if piece.start_s <= s.start_s <= piece.end_s]
        covered += len(own)
        assert (own[0].start_s, own[-1].end_s) == (piece.start_s, piece.end_s)
        assert piece.label in {s.label for s in own} | {UNKNOWN}
        assert not piece.score > max((s.score for s in own if s.score >= 0), default=0) + 1e-9
    assert covered == len(segments)


def test_a_short_piece_has_a_genre_only_if_its_score_is_high_enough() -> None:
    doubtful = Segment(1.0, 4.0, "rock", 0.55)
    assert pieces(HEADER, doubtful) == [replace(doubtful, label=UNKNOWN)]
    sure, long = replace(doubtful, score=0.6), replace(doubtful, end_s=11.0)
    assert pieces(HEADER, sure) == [sure]
    assert pieces(HEADER, long) == [long]
    mixed = [Segment(0.0, 2.0, "rock", 0.9), Segment(2.0, 3.5, "jazz", 0.9)]
    assert [s.label for s in pieces(HEADER, *mixed)] == [UNKNOWN]
    assert table(HEADER, *mixed) == [("0:00.00", "0:03.50", "genre", "0.51")]
    lower = replace(HEADER, options={"timeline": {"threshold": 0.4}})
    assert pieces(lower, doubtful) == [doubtful]


def test_other_models_and_live_sources_keep_their_segments() -> None:
    other = replace(HEADER, background="rock")
    live = replace(HEADER, began="2026-01-01T00:00:00Z")
    for header in (other, live, replace(HEADS, began="2026-01-01T00:00:00Z")):
        assert pieces(header, *SONG) == list(SONG)
    assert len(table(live, *SONG)) == 4
    sounds = [s for s in pieces(HEADS, *BOTH) if s.model == "cosounds"]
    assert sounds == list(DOGS)


def test_tables_of_people_have_a_row_a_piece() -> None:
    rock, jazz = ("0:02.00", "0:13.50", "rock", "0.60"), ("0:14.75", "0:20.75", "jazz", "0.70")
    assert table(HEADER, *SONG) == [rock, jazz]
    dogs = [("0:03.00", "0:04.00", "dog", "0.90"), ("0:04.50", "0:05.50", "dog", "0.80")]
    assert table(HEADS, *BOTH) == [rock, *dogs, jazz]


@pytest.mark.parametrize(("header", "segments"), [(HEADER, SONG), (HEADS, tuple(BOTH))])
def test_records_keep_every_segment(
    tmp_path: Path, header: Header, segments: tuple[Segment, ...]
) -> None:
    result = costream.Results(header, segments, SUMMARY)
    result.save(tmp_path / "a.csv")
    assert len(rows(tmp_path / "a.csv")) == len(segments)
    result.save(tmp_path / "a.srt")
    assert (tmp_path / "a.srt").read_text("utf-8").count("-->") == len(segments)
    result.save(tmp_path / "a.jsonl")
    assert costream.Results.read(tmp_path / "a.jsonl").segments == list(segments)


def test_the_report_has_a_piece_a_row() -> None:
    digest = RunSummary.of([HEADS, *BOTH, SUMMARY])
    assert [(s.label, s.start_s) for s in digest.segments if s.model == "cotrans"] == [
        ("rock", 2.0),
        ("jazz", 14.75),
    ]
    assert digest.stats["dog"].count == 2


def test_three_pieces_of_a_recording_are_three_rows() -> None:
    call = ("listen", SAMPLES / "band.ogg", "-m", "cotrans", "--threshold", "0.4")
    found = records(run(*call, "-f", "jsonl").stdout, "segment")
    assert [s["label"] for s in found] == ["classical", "rock", "country", "disco"]
    shown = table_rows(run(*call).stdout.splitlines())
    assert [row[2] for row in shown] == ["classical", "rock", "disco"]


SOUNDS = replace(
    HEADER,
    labels=("Animal", "Dog", "Bark", "Cat", "Siren", "Police car (siren)", "Music"),
    background=None,
)


def rows_of(header: Header, *segments: Segment) -> list[str]:
    shown = ReadableRows(header)
    made = [row for segment in segments for row in shown.add(segment)] + shown.rest()
    assert all(row in segments for row in made)
    return [row.label for row in made]


def test_a_sound_with_several_names_is_one_row() -> None:
    def named(**scores: float) -> list[str]:
        return rows_of(SOUNDS, *(Segment(1.0, 3.0, label, s) for label, s in scores.items()))

    assert named(Animal=0.7, Dog=0.65, Bark=0.6) == ["Bark"]  # about as sure: the special name
    assert named(Animal=0.7, Dog=0.65, Bark=0.4) == ["Dog"]
    assert named(Animal=0.7, Dog=0.3) == ["Animal"]  # a guess
    assert named(Animal=0.3, Bark=0.9) == ["Bark"]
    assert named(Dog=0.6, Cat=0.55, Animal=0.6) == ["Dog", "Cat"]
    assert named(Dog=0.9, Music=0.2) == ["Dog", "Music"]
    assert named(Animal=math.nan, Dog=math.nan) == ["Dog"]
    live = replace(SOUNDS, began="2026-11-28T10:00:00+00:00")
    both = (Segment(1.0, 3.0, "Dog", 0.6), Segment(1.0, 3.0, "Animal", 0.6))
    assert rows_of(live, *both) == ["Dog", "Animal"]
    assert rows_of(replace(SOUNDS, labels=("Animal", "Dog", "sheepdog")), *both) == [
        "Dog",
        "Animal",
    ]


def test_names_that_sound_at_other_times_are_rows() -> None:
    siren = Segment(0.0, 10.0, "Siren", 0.5)
    assert rows_of(SOUNDS, siren, Segment(2.0, 5.0, "Police car (siren)", 0.6)) == [
        *("Siren", "Police car (siren)")
    ]
    assert rows_of(SOUNDS, siren, Segment(2.0, 7.0, "Police car (siren)", 0.6)) == [
        "Police car (siren)"
    ]


times = st.tuples(st.integers(0, 300), st.integers(1, 200)).map(lambda t: (t[0], t[0] + t[1]))
scored = st.tuples(times, st.sampled_from(SOUNDS.labels), st.sampled_from((0.2, 0.4, 0.45, 0.5)))


@given(st.lists(scored, max_size=12))
def test_something_is_shown_wherever_something_was_heard(drawn: list[Any]) -> None:
    segments = [Segment(a, b, label, score) for (a, b), label, score in drawn]
    segments.sort(key=lambda s: s.end_s)
    shown = ReadableRows(SOUNDS)
    for k, segment in enumerate(segments):
        for row in shown.add(segment):
            assert row.end_s < segments[k].start_s - WAIT_S
    if segments:
        best = max(segments, key=lambda s: (s.score, -SOUNDS.labels.index(s.label)))
        names = rows_of(SOUNDS, *(replace(s, start_s=0.0, end_s=1.0) for s in segments))
        assert names
        if best.label in ("Cat", "Music"):
            assert best.label in names
