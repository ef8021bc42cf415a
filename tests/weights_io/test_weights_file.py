from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from costream.core.errors import ModelError, OutputError
from costream.weights_io.card import Card, Timeline
from costream.weights_io.file import (
    FORMAT,
    all_tensors,
    read_card,
    read_header,
    read_weights,
    write_weights,
)

CARD = Card(
    name="tiny",
    task="online action detection",
    architecture="cooadtr",
    arguments={"input_width": 4, "num_classes": 2},
    labels=("background", "café ☕"),
    rate_hz=4.0,
    background="background",
    timeline=Timeline(threshold=0.4),
    metrics={"mAP": 0.5},
)
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    out = {f"t.{d}": (100 * torch.randn(3, 5, generator=random)).to(d) for d in DTYPES}
    out["scalar"] = torch.tensor(7)
    out["empty"] = torch.zeros(0, 3)
    out["transposed"] = torch.randn(4, 6, generator=random).T
    out["special"] = torch.tensor([float("inf"), -0.0, 1e-45])
    return out


@pytest.fixture
def path(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    file = tmp_path / "tiny.safetensors"
    write_weights(file, CARD, tensors)
    return file


def test_round_trip_is_bit_exact(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    weights = read_weights(path)
    assert weights.card == CARD
    assert weights.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = weights.tensors[name]
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        bits, bits_back = (t.contiguous().reshape(-1).view(torch.uint8) for t in (tensor, back))
        assert torch.equal(bits, bits_back), name


def test_other_programs_can_read_it(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == FORMAT
    assert json.loads(metadata["card"])["labels"][1] == "café ☕"
    assert torch.equal(load_file(path)["transposed"], tensors["transposed"])


def test_same_content_gives_the_same_bytes(
    path: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    other = tmp_path / "other.safetensors"
    digest = write_weights(other, CARD, dict(reversed(tensors.items())))
    assert other.read_bytes() == path.read_bytes()
    assert read_header(path).metadata["tensors_sha256"] == digest == read_weights(path).sha256


def test_digest_sees_names_types_shapes_and_bits(tmp_path: Path) -> None:
    variants = [
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0])},
    ]
    digests = {write_weights(tmp_path / "x.safetensors", CARD, v) for v in variants}
    assert len(digests) == len(variants)


def test_card_is_read_without_torch_or_numpy(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from costream.weights_io.file import read_card\n"
        "print(read_card(Path(sys.argv[1])).name, [m for m in ('torch', 'safetensors', 'numpy')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "tiny []\n"


def test_every_cut_is_noticed(path: Path, tmp_path: Path) -> None:
    content, cut = path.read_bytes(), tmp_path / "cut.safetensors"
    for length in (0, 1, 7, 8, 9, 20, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"truncated|not a safetensors file") as caught:
            read_weights(cut)
        assert str(cut) in str(caught.value)


def test_every_changed_bit_of_a_tensor_is_noticed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = min(info.begin for info in read_header(path).tensors.values())
    for at in range(start, len(content), 37):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="damaged"):
            read_weights(path)


@pytest.mark.parametrize(
    "content",
    [b"not weights at all, just text", b"\x80\x04K\x01.", b"\xff" * 64, b"PK\x03\x04" + bytes(30)],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    with pytest.raises(ModelError, match="not a safetensors file"):
        read_card(file)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]},
        "text",
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, entry: object) -> None:
    file, text = tmp_path / "x.safetensors", json.dumps({"a": entry}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match="damaged header"):
        read_header(file)


def test_holes_between_tensors_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    metadata = {"format": FORMAT, "card": CARD.to_json(), "tensors_sha256": ""}
    text = json.dumps({"__metadata__": metadata, "a": entry}).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match="not a valid safetensors file"):
        read_weights(file)


def test_missing_file_folder_and_card(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_card(tmp_path / "nowhere.safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        read_card(tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "plain.safetensors")
    with pytest.raises(ModelError, match=r"no model card.*costream models import"):
        read_card(tmp_path / "plain.safetensors")


def test_newer_format_and_bad_card_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1)}, file, {"card": CARD.to_json(), "format": "costream-weights/9"})
    with pytest.raises(ModelError, match=r"costream-weights/9.*update"):
        read_card(file)
    save_file({"a": torch.zeros(1)}, file, {"card": "{}", "format": FORMAT})
    with pytest.raises(ModelError, match=r"x\.safetensors.*card cannot be read"):
        read_card(file)


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    write_weights(file, CARD, {"a": torch.ones(1)})
    before = file.read_bytes()
    with pytest.raises(ModelError, match="complex64"):
        write_weights(file, CARD, {"a": torch.zeros(1, dtype=torch.complex64)})
    with pytest.raises(OutputError, match="cannot be written"):
        write_weights(file / "below" / "y.safetensors", CARD, {"a": torch.ones(1)})
    folder = tmp_path / "taken.safetensors"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OutputError, match="cannot be written"):
        write_weights(folder, CARD, {"a": torch.ones(1)})
    assert file.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [folder.name, file.name]


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_others_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_weights(tmp_path / "new" / "x.safetensors", CARD, {"a": torch.ones(1)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "x.safetensors").stat().st_mode) == 0o644


def test_tensors_of_another_file_are_stored_once_and_read_as_before(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    common = {"frontend.x": torch.randn(40, 50), "frontend.n": torch.tensor(3)}
    write_weights(first, CARD, {**common, "network.y": torch.randn(3)})
    other = {**common, "network.y": torch.randn(3), "network.z": torch.randn(2).half()}
    complete = write_weights(second, CARD, other)
    size = second.stat().st_size
    assert write_weights(second, CARD, other, shares=first) == complete
    assert second.stat().st_size < size - 8000
    assert read_header(second).tensors.keys() == {"network.y", "network.z"}
    assert all_tensors(second)["frontend.x"].shape == (40, 50)
    stored = read_weights(second)
    assert stored.sha256 == complete == read_header(second).metadata["tensors_sha256"]
    assert stored.tensors.keys() == other.keys()
    for name, tensor in other.items():
        assert stored.tensors[name].dtype == tensor.dtype
        assert torch.equal(stored.tensors[name], tensor)


def test_a_file_that_shares_tensors_needs_the_other_one_unchanged(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    common = {"x": torch.randn(4), "y": torch.randn(4)}
    write_weights(first, CARD, common)
    write_weights(second, CARD, common, shares=first)
    write_weights(first, CARD, {**common, "y": torch.zeros(4)})
    with pytest.raises(ModelError, match=r"b\.safetensors: the tensors do not match"):
        read_weights(second)
    write_weights(first, CARD, {"x": common["x"]})
    with pytest.raises(ModelError, match=r"a\.safetensors: has no y, which b\.safetensors shares"):
        read_weights(second)
    first.unlink()
    with pytest.raises(ModelError, match=r"stored in a\.safetensors, which is missing; copy a"):
        read_weights(second)


@pytest.mark.parametrize(
    "entry",
    ["[", "{}", '{"file": "a"}', '{"file": "../a", "tensors": ["x"]}', '{"file": 3, "tensors": 3}'],
)
def test_damaged_metadata_of_shared_tensors_is_one_line(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "b.safetensors"
    write_weights(path, CARD, {"x": torch.zeros(1)})
    metadata = {**read_header(path).metadata, "shares": entry}
    save_file({"x": torch.zeros(1)}, path, metadata)
    with pytest.raises(ModelError, match="shares"):
        read_weights(path)
