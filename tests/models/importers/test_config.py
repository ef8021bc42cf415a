from __future__ import annotations

import pytest

from costream.core.errors import ExitCode, ModelError, UsageError
from costream.core.label_sets import THUMOS14, TVSERIES
from costream.weights_io.import_settings import CARD_KEYS, KEYS, ImportSettings, read_pairs


def test_values_are_typed() -> None:
    given = {"num_heads": "8", "norm_first": "No", "activation": "gelu", "rate_hz": "4.5"}
    config = ImportSettings(given, KEYS)
    assert [config.get(key) for key in given] == [8, False, "gelu", 4.5]
    assert config.get("window") is None


@pytest.mark.parametrize(
    ("key", "text", "kind"),
    [
        ("num_heads", "eight", "a whole number above 0"),
        ("window", "0", "a whole number above 0"),
        ("window", "1.5", "a whole number above 0"),
        ("norm_first", "maybe", "true or false"),
        ("activation", "tanh", "relu or gelu"),
        ("rate_hz", "-1", "a number above 0"),
        ("rate_hz", "nan", "a number above 0"),
        ("rate_hz", "inf", "a number above 0"),
    ],
)
def test_wrong_values_are_usage_errors(key: str, text: str, kind: str) -> None:
    with pytest.raises(UsageError, match=f"{key}={text}: not {kind}") as caught:
        ImportSettings({key: text}, KEYS)
    assert caught.value.exit_code == ExitCode.USAGE


def test_several_settings_in_one_option_are_to_be_given_one_each() -> None:
    message = "one option for each: --config num_heads=8 --config window=64"
    with pytest.raises(UsageError, match=message):
        ImportSettings({"num_heads": "8,window=64"}, KEYS)


def test_unknown_keys_list_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"did you mean num_heads.*known keys: num_heads, labels"):
        ImportSettings({"num_head": "4"}, ("num_heads", "labels"))
    with pytest.raises(UsageError, match="decoder_heads: unknown; known keys: num_heads"):
        ImportSettings({"decoder_heads": "4"}, ("num_heads",))


def test_the_checkpoint_arguments_count_and_must_agree() -> None:
    config = ImportSettings({"window": "64"}, KEYS)
    config.adopt(
        {"enc": 64, "heads": 8, "lr": 1e-4, "flag": True}, {"enc": "window", "heads": "num_heads"}
    )
    assert config.heads("num_heads", 1024) == 8
    config.settle()


def test_all_that_is_missing_or_contradictory_is_named_at_once() -> None:
    config = ImportSettings({"window": "64", "depth": "3"}, KEYS)
    config.adopt({"enc": 32, "heads": 8}, {"enc": "window", "heads": "num_heads"})
    assert config.check("depth", 2) == 2
    assert config.heads("num_heads", 12) == 8
    assert config.require("activation", "relu") == "relu"
    assert config.require("rate_hz") == 1
    with pytest.raises(ModelError) as caught:
        config.settle()
    assert str(caught.value) == (
        "--config window=64 contradicts the checkpoint, whose arguments say enc=32;"
        " --config depth=3 contradicts the checkpoint, whose tensors say 2;"
        " num_heads=8 does not divide the token width 12;"
        " the checkpoint does not contain activation (of the feed-forward layers (gelu: exact,"
        " erf); relu or gelu), rate_hz (steps per second (thumos14, gtzan: 4, skeletons: mostly"
        " 30)); leave out --config window --config depth;"
        " set them: --config activation=... --config rate_hz=..."
    )


def test_published_settings_fill_what_is_open_and_are_listed() -> None:
    config = ImportSettings({"window": "4"}, ("window", "num_heads", "decoder_heads", "depth"))
    config.adopt({"heads": 2}, {"heads": "num_heads"})
    config.suggest({"window": 64, "num_heads": 8, "decoder_heads": 4, "rate_hz": 4.0})
    config.suggest({"depth": 3, "decoder_heads": 5}, "the file")
    assert [config.get(key) for key in ("window", "num_heads", "decoder_heads")] == [4, 2, 4]
    assert config.taken == {"the published settings": "decoder_heads=4", "the file": "depth=3"}
    assert config.heads("decoder_heads", 10) == 1, "4 heads do not divide 10"
    with pytest.raises(ModelError, match="does not contain decoder_heads"):
        config.settle()


def test_pairs() -> None:
    assert read_pairs(["num-heads=8", "labels=a=b.txt", "window = 4"]) == {
        "num_heads": "8",
        "labels": "a=b.txt",
        "window": "4",
    }
    for pair in ("num_heads", "=4", "num_heads="):
        with pytest.raises(UsageError, match="not key=value"):
            read_pairs([pair])
    with pytest.raises(UsageError, match="given twice"):
        read_pairs(["window=4", "window=5"])


def test_known_labels() -> None:
    assert (len(THUMOS14.names), len(TVSERIES.names)) == (22, 31)
    assert (THUMOS14.names[0], THUMOS14.names[21]) == ("Background", "Ambiguous")
    assert (TVSERIES.names[0], TVSERIES.names[30]) == ("background", "Fire weapon")
    for labels in (THUMOS14, TVSERIES):
        assert labels.background == labels.names[0]
        assert len(set(labels.names)) == len(labels.names)
    assert set(CARD_KEYS) < set(KEYS)
