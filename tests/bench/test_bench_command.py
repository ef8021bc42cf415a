"""``costream bench``: tables, JSON and usage errors."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from costream.cli.bench import command
from costream.errors import UsageError


def test_ops_prints_a_table_or_json() -> None:
    text = CliRunner().invoke(command, ["ops"], catch_exceptions=False).stdout
    assert "CoOadTR-b1" in text
    plain = json.loads(CliRunner().invoke(command, ["ops", "--json"]).stdout)
    assert plain[0]["rows"][0]["ActivityNet published"] == 2445.6
    assert plain[1]["rows"][3]["network"] == "CoST-GCN*"
    assert plain[3]["rows"][0]["eventful"] == plain[3]["rows"][0]["eventful published"] == 467.4


def test_steps_of_one_encoder() -> None:
    options = ["steps", "-d", "16", "--heads", "2", "-n", "6", "-L", "2", "--rounds", "1", "--json"]
    (table,) = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).stdout)
    assert table["title"] == "d=16 h=2 n=6 ff=16 L=2 gelu"
    assert table["rows"][0]["way"] == "costream"


def test_a_width_that_heads_do_not_divide_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="give --heads"):
        CliRunner().invoke(command, ["steps", "-d", "10", "--heads", "4"], catch_exceptions=False)


def test_an_encoder_and_a_skeleton_network_at_once_are_a_usage_error() -> None:
    options = ["steps", "-d", "16", "-m", "costgcn-s1"]
    with pytest.raises(UsageError, match="-d and --model exclude each other"):
        CliRunner().invoke(command, options, catch_exceptions=False)
