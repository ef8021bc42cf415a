"""Feature cache: keys, damaged entries and pruning."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from costream.labels.examples import Example
from costream.training import feature_cache
from costream.training.feature_cache import FeatureCache, example_key, example_seed, join_keys
from costream.weights_io.file import read_card
from kit import data_video


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    return read_card(
        data_video.write_tiny_weights(tmp_path_factory.mktemp("base") / "t.safetensors")
    )


class Made:
    """Counts how often it had to compute."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return [torch.arange(6.0).view(2, 3), torch.full((2,), torch.nan, dtype=torch.float64)]


def same(a, b):
    return len(a) == len(b) and all(
        x.dtype == y.dtype and torch.equal(x.nan_to_num(9), y.nan_to_num(9))
        for x, y in zip(a, b, strict=True)
    )


def example(path, **changes):
    return replace(Example(str(path), "a", 0.0, None, "", ""), **changes)


def test_what_was_made_once_is_found_again(card, tmp_path):
    made = Made()
    for _ in range(2):
        cache = FeatureCache(tmp_path / "kept", card, torch.nn.Linear(2, 2, bias=False).half())
        assert same(cache.make(["x", 1], made), made())
    assert made.count == 4  # each frontend has weights of its own
    frontend = torch.nn.Linear(2, 2)
    for _ in range(2):
        assert same(FeatureCache(tmp_path / "kept", card, frontend).make(["x", 1], made), made())
    assert made.count == 7
    other = replace(card, rate_hz=4.0)
    FeatureCache(tmp_path / "kept", other, frontend).make(["x", 1], made)
    FeatureCache(tmp_path / "kept", card, frontend).make(["x", 2], made)
    assert made.count == 9


@pytest.mark.parametrize("damage", [b"", b"mine", None])
def test_a_damaged_entry_is_made_again(damage, card, tmp_path):
    made, cache = Made(), FeatureCache(tmp_path, card, torch.nn.Identity())
    cache.make(["x"], made)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert same(cache.make(["x"], made), made())
    assert made.count == 3
    assert path.read_bytes() == whole


def test_a_file_that_changed_is_another(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    keys = [example_key(example(path))]
    os.utime(path, ns=(1, 1))
    keys.append(example_key(example(path)))
    path.write_bytes(b"three")
    os.utime(path, ns=(1, 1))
    keys += [example_key(example(path)), example_key(example(path, start_s=1.0))]
    assert len({str(key) for key in keys}) == 4
    assert example_key(example(path, label="b", group="g", where="w")) == keys[2]


def test_what_is_not_a_file_is_not_kept(card, tmp_path):
    assert example_key(example("https://example.org/a.mp4")) is None
    assert example_key(example(tmp_path)) is None
    assert join_keys(["a"], None) is None
    made, cache = Made(), FeatureCache(tmp_path, card, torch.nn.Identity())
    for _ in range(2):
        cache.make(None, made)
    assert made.count == 2
    assert list(tmp_path.iterdir()) == []


def test_chances_follow_the_name_and_not_the_folder(tmp_path):
    one, two = (example(tmp_path / folder / "a.mp4") for folder in ("x", "y"))
    assert example_seed(one, 0) == example_seed(two, 0) != example_seed(one, 1)


def test_what_was_not_used_for_longest_goes_first(card, tmp_path, monkeypatch):
    other = tmp_path / "notes.txt"
    other.write_bytes(bytes(10_000))
    os.utime(other, (1, 1))
    cache = FeatureCache(tmp_path, card, torch.nn.Identity())
    entries = {}
    for k in range(4):
        cache.make([k], Made())
        (entries[k],) = set(tmp_path.glob("*.features")) - set(entries.values())
        os.utime(entries[k], (k, k))
    cache.make([0], Made())  # is used again
    monkeypatch.setattr(feature_cache, "LIMIT_BYTES", 2 * entries[0].stat().st_size)
    cache.prune()
    assert {k for k, path in entries.items() if path.exists()} == {0, 3}
    assert other.exists()


@pytest.mark.skipif(os.name != "posix", reason="a file in the way of a folder, as POSIX has it")
def test_a_folder_that_cannot_be_written_is_warned_of_once(card, tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    made = Made()
    cache = FeatureCache(Path(tmp_path / "file" / "kept"), card, torch.nn.Identity())
    for _ in range(2):
        assert same(cache.make(["x"], made), Made()())
    cache.prune()
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["features are not cached"]
