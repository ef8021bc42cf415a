"""Pickles of arrays are read; pickles that do anything else are refused, unharmed."""

from __future__ import annotations

import collections
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.errors import SourceError
from costream.sources.features.feature_pickles import load_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def load(content: bytes, tmp_path: Path) -> Any:
    path = tmp_path / f"{abs(hash(content))}.pickle"
    path.write_bytes(content)
    return load_pickle(str(path))


# --- what is read -----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i8", "u1", "?"])
def test_arrays(protocol: int, dtype: str, tmp_path: Path) -> None:
    array = (np.arange(24).reshape(6, 4) % 7).astype(dtype)
    value = {"v": {"rgb": array, "flow": np.asfortranarray(array), "part": array[::2, 1:]}}
    turned = array.reshape(2, 3, 4).transpose(1, 0, 2)
    value["v"]["turned"] = turned
    out = load(pickle.dumps(value, protocol), tmp_path)["v"]
    assert np.array_equal(out["rgb"], array)
    assert np.array_equal(out["flow"], array)
    assert np.array_equal(out["part"], array[::2, 1:])
    assert np.array_equal(out["turned"], turned)
    assert out["rgb"].dtype == array.dtype


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_and_shared_arrays(protocol: int, tmp_path: Path) -> None:
    array = np.ones((2, 2), np.float32)
    value = collections.OrderedDict(
        a={"rgb": array, "n": np.float32(2.5), "length": 7, "name": "é", "raw": b"\xff\x00"},
        b={"rgb": array, "list": [1, 2.5, None]},
    )
    out = load(pickle.dumps(value, protocol), tmp_path)
    assert list(out) == ["a", "b"]
    assert out["a"]["n"] == np.float32(2.5)
    assert (out["a"]["length"], out["a"]["name"], out["a"]["raw"]) == (7, "é", b"\xff\x00")
    assert out["b"]["list"] == [1, 2.5, None]
    assert np.array_equal(out["b"]["rgb"], array)


def test_a_pickle_of_python_2(tmp_path: Path) -> None:
    """Byte strings for keys and for the numbers, and numpy.core, as THUMOS features have."""
    numbers = np.array([[1.5, -2.0]], "<f4")
    raw = numbers.tobytes()
    content = (
        b"\x80\x02}q\x00U\x07video_1q\x01}q\x02U\x03rgbq\x03"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
        + bytes([len(raw)])
        + raw
        + b"tbss."
    )
    assert pickle.loads(content, encoding="latin1")["video_1"]["rgb"].tolist() == [[1.5, -2.0]]
    assert load(content, tmp_path)["video_1"]["rgb"].tolist() == [[1.5, -2.0]]


def test_the_last_pickle_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"a": np.ones((2, 2))}))
    assert load_pickle(str(path)) is load_pickle(str(path))
    path.write_bytes(pickle.dumps({"a": np.ones((3, 3)), "b": 1}))
    assert load_pickle(str(path))["a"].shape == (3, 3)


# --- what is refused --------------------------------------------------------------------------

WITNESS = "COSTREAM_TEST_WITNESS"


class Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def attacks() -> dict[str, Any]:
    command = f"touch {WITNESS}"
    code = f"open({WITNESS!r}, 'w')"
    return {
        "os.system": Call(os.system, command),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "import": Call(__import__, "this"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "open": Call(open, WITNESS, "w"),
        "nested": {"v": {"rgb": np.ones((2, 2)), "flow": [Call(os.system, command)]}},
        "key": {Call(os.system, command): 1},
        "numpy function": Call(np.fromfile, WITNESS),
        "numpy load": Call(np.load, WITNESS),
        "object array": np.array([Call(os.system, command), None], dtype=object),
        "strings": np.array(["a", "b"]),
        "records": np.zeros(2, [("a", "f4")]),
        "class": Path("x"),
        "complex": 1j,
        "set": {1, 2},
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", attacks())
def test_attacks(name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"x": attacks()[name]} if name != "key" else attacks()[name], protocol)
    if name == "set" and protocol >= 4:
        assert load(content, tmp_path) == {"x": {1, 2}}  # plain data, with its own opcode
        return
    with pytest.raises(SourceError) as caught:
        load(content, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / WITNESS).exists()


def by_hand(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


GLOBAL_DTYPE = b"cnumpy\ndtype\n"
FLOAT = GLOBAL_DTYPE + b"\x8c\x02f4\x85R"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n)R"

TRICKS = {
    # Names with dots reach through a module in protocol 4.
    "dotted": b"\x8c\x05numpy\x8c\x0dctypeslib.os\x93",
    "dotted builtin": b"\x8c\x08builtins\x8c\x04eval\x93",
    "other module, known name": b"\x8c\x02os\x8c\x07ndarray\x93",
    "prefix of a known module": b"\x8c\x1dnumpy.core.multiarray.x.y.zzz\x8c\x0c_reconstruct\x93",
    # BUILD on a function or a type would set its attributes.
    "attributes of a function": GLOBAL_DTYPE + b"}\x8c\x04call\x8c\x01xsb",
    "slots of a function": GLOBAL_DTYPE + b"N}\x8c\x04call\x8c\x01xs\x86b",
    "new object of a function": GLOBAL_DTYPE + b")\x81",
    "numpy array by hand": b"cnumpy\nndarray\n(K\x04\x85\x8c\x01O\x86R",
    "object type": GLOBAL_DTYPE + b"\x8c\x02O8\x85R",
    "type with flags": FLOAT + b"(K\x03\x8c\x01ONNNK\x00K\x00K\x3ftb",
    "array of objects": ARRAY + b"(K\x01K\x01\x85" + FLOAT + b"\x89]K\x01atb",
    "negative shape": ARRAY + b"(K\x01J\xff\xff\xff\xff\x85" + FLOAT + b"\x89C\x04abcdtb",
    "shape larger than the data": ARRAY + b"(K\x01K\x7f\x85" + FLOAT + b"\x89C\x04abcdtb",
    "half a number": ARRAY + b"(K\x01K\x01\x85" + FLOAT + b"\x89C\x03abctb",
    "short state": ARRAY + b"K\x01\x85b",
    "codec": b"c_codecs\nencode\n\x8c\x01x\x8c\x05rot13\x86R",
    "codec lookup": b"c_codecs\nlookup\n\x8c\x05rot13\x85R",
    "persistent": b"\x8c\x01xQ",
    "extension": b"\x82\x01",
    "out of band": b"\x97",
    "empty stack": b"0",
    "unknown opcode": b"\xfe",
}


@pytest.mark.parametrize("name", TRICKS)
def test_tricks(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        load(by_hand(TRICKS[name]), tmp_path)


def test_every_truncation_and_many_flips_end_in_one_line(tmp_path: Path) -> None:
    content = pickle.dumps({"v": {"rgb": np.ones((3, 2), np.float32)}}, 4)
    rng = np.random.default_rng(0)
    damaged = [content[:n] for n in range(len(content))]
    for _ in range(300):
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] = rng.integers(256)
        damaged.append(bytes(flipped))
    refused = 0
    for k, data in enumerate(damaged):
        path = tmp_path / f"{k}.pickle"
        path.write_bytes(data)
        try:
            load_pickle(str(path))
        except SourceError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017  (some of them are sound)
    assert refused > len(content)


def test_a_dict_within_itself_and_a_flood_of_references(tmp_path: Path) -> None:
    itself: dict[str, Any] = {}
    itself["x"] = itself
    out = load(pickle.dumps(itself), tmp_path)
    assert out["x"] is out
    level: dict[str, Any] = {}
    for _ in range(60):  # spelled out, 2 to the 60th dicts
        level = {"a": level, "b": level}
    assert set(load(pickle.dumps(level), tmp_path)) == {"a", "b"}


def test_no_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the import of a module that a pickle names takes place."""
    (tmp_path / "trap.py").write_text(f"open({WITNESS!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SourceError, match=r"calls trap\.x, which is refused"):
        load(b"\x80\x02ctrap\nx\n.", tmp_path)
    assert not (tmp_path / WITNESS).exists()


def test_the_message_says_what_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"calls (posix|nt)\.system, which is refused; only"):
        load(pickle.dumps(Call(os.system, "true")), tmp_path)


def test_huge_lengths_are_not_believed(tmp_path: Path) -> None:
    content = b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x."
    with pytest.raises(SourceError):
        load(content, tmp_path)


def test_the_attacks_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own unpickler does run them."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(attacks()["eval"]))
    assert (tmp_path / WITNESS).exists()
