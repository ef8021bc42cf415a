"""The table of published checkpoints: the shipped one, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from costream.cli.models_fetch import fetch_command
from costream.core.errors import ModelError
from costream.models.verify import KNOWN_SOUNDS
from costream.weights_io.import_settings import check_published
from costream.weights_io.published import read_published
from kit.paths import WEIGHTS

# The zoos of SlowFast and PyTorchVideo, repositories and the hub give no digests.
WITHOUT_DIGESTS = (
    "https://dl.fbaipublicfiles.com/py",
    "https://github.com/w-hc/torch_audioset/",
    "https://github.com/Atze00/MoViNet-pytorch/",
    "https://huggingface.co/hustvl/yolos-",
)
DIGEST_ELSEWHERE = "https://storage.googleapis.com/rfdetr/"  # in the package rfdetr
TABLE = WEIGHTS / "published.toml"
ENTRY = """[net]
url = "https://host/net.pth"
megabytes = 1.5
licence = "MIT"
source = "somebody"
"""


def test_the_table_that_comes_with_costream() -> None:
    entries = read_published(TABLE)
    assert {"vggish", "vggish-pca"} <= {n for n, e in entries.items() if e.config is None}
    for name, entry in entries.items():
        assert entry.name == name
        assert entry.url.startswith("https://")
        checked = entry.algorithm is not None or entry.by_hand is not None
        assert checked or entry.url.startswith(WITHOUT_DIGESTS), name
        assert set(entry.check) <= set(KNOWN_SOUNDS)
        assert entry.digest in entry.url or entry.url.startswith(DIGEST_ELSEWHERE)
        assert entry.config is not None or entry.note, name
        assert (entry.config is None) == (not entry.task), name
        for part in entry.also:
            assert part.algorithm is not None, name
            assert part.digest in part.url
            assert part.file != entry.file
        check_published(entry.config or {}, name)


def test_every_key(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    digest = "0123456789ABCDEF" * 4
    more = f'sha256 = "{digest}"\nimport = {{window = 4, labels = "gtzan"}}\nnote = "n"\n'
    path.write_text(ENTRY + more + ENTRY.replace("[net]", '[page]\nby_hand = "x.pth"'), "utf-8")
    net, page = read_published(path).values()
    assert (net.algorithm, net.digest) == ("sha256", digest.lower())
    assert net.config == {"window": "4", "labels": "gtzan"}
    assert (net.file, net.note, net.megabytes, net.by_hand) == ("net.pth", "n", 1.5, None)
    assert (page.file, page.by_hand, page.algorithm, page.config) == ("x.pth", "x.pth", None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[net", "not valid TOML"),
        ("\udcff", "not valid TOML"),
        ("net = 1", r"list\.toml: \[net\]: not a table"),
        (ENTRY.replace('licence = "MIT"', ""), r"\[net\]: missing key 'licence'"),
        (ENTRY + "size = 1", "unknown key 'size'; known: url"),
        (ENTRY.replace("1.5", '"big"'), "megabytes is invalid: 'big'"),
        (ENTRY.replace("1.5", "true"), "megabytes is invalid: True"),
        (ENTRY.replace("1.5", "-1"), "megabytes is invalid: -1"),
        (ENTRY.replace("1.5", "nan"), "megabytes is invalid: nan"),
        (ENTRY.replace("https", "ftp"), "not an HTTP address"),
        (ENTRY.replace("//host", "//[host"), "not an HTTP address"),
        (ENTRY.replace("https://host/net.pth", "https://host/a b.pth"), "not an HTTP address"),
        (ENTRY.replace("/net.pth", "/"), "not the address of a file"),
        (ENTRY.replace("/net.pth", "/.."), "not the address of a file"),
        (ENTRY.replace("[net]", "['../net']"), "not a valid file name"),
        (ENTRY + 'by_hand = "../x"', "not the address of a file"),
        (ENTRY + "also = [1]", "also is invalid: 1"),
        (ENTRY + 'also = [{url = "https://h/a.pth", note = "n"}]', "also is invalid"),
        (ENTRY + 'also = [{sha256_prefix = "ab"}]', "missing key 'url'"),
        (ENTRY + 'sha256 = "abc"', "sha256: not the digest of a file"),
        (ENTRY + 'sha256_prefix = ""', "sha256_prefix: not the digest"),
        (ENTRY + 'md5_prefix = "xyz"', "md5_prefix: not the digest"),
        (ENTRY + 'md5_prefix = "ab"\nsha256_prefix = "ab"', "not the digest of a file"),
    ],
)
def test_damage_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError, match=message) as caught:
        read_published(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{label = "coco"}', r"\[net\]: import: label: unknown; did you mean labels"),
        ("{window = 0}", r"\[net\]: import: window=0: not a whole number above 0"),
    ],
)
def test_wrong_import_settings_are_reported_before_anything_is_fetched(
    tmp_path: Path, settings: str, message: str
) -> None:
    path = tmp_path / "list.toml"
    path.write_text(ENTRY + f"import = {settings}", "utf-8")
    with pytest.raises(ModelError, match=message) as caught:
        CliRunner().invoke(fetch_command, ["net", "--list", str(path)], catch_exceptions=False)
    assert str(path) in str(caught.value)


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.toml: there is no such table of checkpoints"):
        read_published(tmp_path / "none.toml")
    with pytest.raises(ModelError, match="cannot be read"):
        read_published(tmp_path)


@given(cut=st.integers(0, TABLE.stat().st_size), change=st.integers(0, 255))
def test_no_damage_is_a_bug(
    tmp_path_factory: pytest.TempPathFactory, cut: int, change: int
) -> None:
    content = TABLE.read_bytes()
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    for damaged in (content[:cut], content[:cut] + bytes([change]) + content[cut + 1 :]):
        path.write_bytes(damaged)
        try:
            read_published(path)
        except ModelError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most damage is no error
