"""Tables as text and JSON."""

from __future__ import annotations

import json

from costream.tables import Table

TABLE = Table(
    "Speed",
    ("way", "us", "count"),
    (("one", 1234.5, 1_000_000), ("another", 0.00012, 7), ("absent", None, None)),
    ("A note.",),
)


def test_text_aligns_words_left_and_numbers_right() -> None:
    assert TABLE.to_text().splitlines() == [
        "Speed",
        "",
        "way            us      count",
        "-------  --------  ---------",
        "one       1,234.5  1,000,000",
        "another  1.20e-04          7",
        "absent          -          -",
        "",
        "A note.",
    ]


def test_json_has_a_row_as_an_object() -> None:
    plain = json.loads(json.dumps(TABLE.to_json()))
    assert plain["rows"][0] == {"way": "one", "us": 1234.5, "count": 1_000_000}
    assert plain["rows"][2]["us"] is None
    assert (plain["title"], plain["notes"]) == ("Speed", ["A note."])


def test_a_table_without_rows_still_has_its_columns() -> None:
    assert Table("Empty", ("a", "b"), ()).to_text().splitlines()[2] == "a  b"


def test_all_fractions_with_as_many_decimals_as_wanted() -> None:
    table = Table("T", ("a", "b", "c"), ((0.0004, 12, 12.5),), decimals=3)
    assert table.to_text().splitlines()[-1] == "0.000  12  12.500"
