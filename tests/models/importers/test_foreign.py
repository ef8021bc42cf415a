from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from costream.core.errors import ModelError
from costream.models.importing import import_files
from costream.weights_io.card import Card
from costream.weights_io.file import write_weights
from costream.weights_io.foreign import read_foreign, without_parts

WEIGHTS = {"0.weight": torch.arange(6.0).reshape(2, 3), "0.bias": torch.tensor([0.5, -1.0])}
NUMPY = {name: value.numpy() for name, value in WEIGHTS.items()}
ARGS = argparse.Namespace(
    num_heads=4, lr=1e-4, class_index=["a", "b"], loss=np.float64(0.5), device="cuda", resume=None
)
Save = Callable[[object, Path], None]


def save_old(content: object, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def save_pickle(protocol: int) -> Save:
    def save(content: object, path: Path) -> None:
        path.write_bytes(pickle.dumps(content, protocol))

    return save


def check(path: Path) -> None:
    tensors = read_foreign(path).tensors
    assert tensors.keys() == WEIGHTS.keys()
    for name, value in WEIGHTS.items():
        assert torch.equal(tensors[name], value)
        assert tensors[name].dtype == torch.float32


@pytest.mark.parametrize("save", [torch.save, save_old])
@pytest.mark.parametrize("weights", [WEIGHTS, NUMPY, collections.OrderedDict(WEIGHTS)])
@pytest.mark.parametrize("key", [None, "model", "state_dict", "model_state_dict"])
def test_torch_files_and_their_wrappers(
    tmp_path: Path, save: Save, weights: dict[str, object], key: str | None
) -> None:
    content = weights if key is None else {key: weights, "epoch": 3, "optimizer": {"lr": 0.1}}
    save(content, tmp_path / "x.pth")
    check(tmp_path / "x.pth")


@pytest.mark.parametrize("save", [torch.save, save_old])
def test_arguments_of_a_training_script_are_kept(tmp_path: Path, save: Save) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))]).state_dict()
    save({"model": WEIGHTS, "args": ARGS, "optimizer": optimizer}, tmp_path / "x.pth")
    settings = read_foreign(tmp_path / "x.pth").args
    assert (settings["num_heads"], settings["class_index"]) == (4, ["a", "b"])
    check(tmp_path / "x.pth")


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_of_arrays(tmp_path: Path, protocol: int) -> None:
    save_pickle(protocol)({"model": NUMPY, "args": ARGS}, tmp_path / "x.pkl")
    check(tmp_path / "x.pkl")


def test_text_pickles_are_not_checkpoints(tmp_path: Path) -> None:
    save_pickle(0)(NUMPY, tmp_path / "x.pkl")
    with pytest.raises(ModelError, match="not a checkpoint"):
        read_foreign(tmp_path / "x.pkl")


def test_pickles_of_numpy_1_name_their_parts_otherwise(tmp_path: Path) -> None:
    text = pickle.dumps(NUMPY, 2).replace(b"numpy._core.", b"numpy.core.")
    (tmp_path / "x.pkl").write_bytes(text)
    check(tmp_path / "x.pkl")


def test_npz_and_safetensors(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **NUMPY)
    check(tmp_path / "x.npz")
    save_file(WEIGHTS, tmp_path / "x.safetensors")
    check(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "prefix", ["module.", "model.", "_orig_mod.", "module.model.", "model.module."]
)
def test_prefixes_of_wrapping_modules_are_taken_off(tmp_path: Path, prefix: str) -> None:
    torch.save({prefix + name: value for name, value in WEIGHTS.items()}, tmp_path / "x.pth")
    check(tmp_path / "x.pth")


def test_half_and_double_become_single_precision_and_counters_stay(tmp_path: Path) -> None:
    content = {"h": torch.ones(2).half(), "d": torch.ones(2).double(), "ids": torch.arange(3)}
    torch.save(content, tmp_path / "x.pth")
    tensors = read_foreign(tmp_path / "x.pth").tensors
    assert [tensors[k].dtype for k in content] == [torch.float32, torch.float32, torch.int64]


def test_parameters_and_other_byte_orders_become_plain_tensors(tmp_path: Path) -> None:
    content = {
        "0.weight": torch.nn.Parameter(WEIGHTS["0.weight"].clone()),
        "0.bias": NUMPY["0.bias"].astype(">f4"),
    }
    torch.save(content, tmp_path / "x.pth")
    check(tmp_path / "x.pth")
    assert not any(t.requires_grad for t in read_foreign(tmp_path / "x.pth").tensors.values())


def test_sparse_tensors_are_named(tmp_path: Path) -> None:
    torch.save({**WEIGHTS, "s": torch.eye(2).to_sparse()}, tmp_path / "x.pth")
    with pytest.raises(ModelError, match=r"not plain tensors: s \(SparseTensor\)"):
        read_foreign(tmp_path / "x.pth")


class Malice:
    """Pickles as a call: of ``function``, with ``arguments``."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def malices(marker: Path) -> dict[str, object]:
    command = f"touch {marker}"
    return {
        "system": Malice(os.system, command),
        "eval": Malice(eval, f"__import__('os').system({command!r})"),
        "exec": Malice(exec, f"open({str(marker)!r}, 'w')"),
        "open": Malice(open, str(marker), "w"),
        "getattr": Malice(getattr, "", "__class__"),
        "torch.load": Malice(torch.load, str(marker)),
        "partial": Malice(__import__("functools").partial, os.system, command),
    }


@pytest.mark.parametrize("save", [torch.save, save_old, *map(save_pickle, (2, 4, 5))])
@pytest.mark.parametrize("kind", malices(Path("x")))
@pytest.mark.parametrize("where", ["top", "weights", "args"])
def test_code_in_a_pickle_is_refused_and_not_run(
    tmp_path: Path, save: Save, kind: str, where: str
) -> None:
    marker = tmp_path / "marker"
    malice = malices(marker)[kind]
    save(
        {
            "top": malice,
            "weights": {"model": {**NUMPY, "x": malice}},
            "args": {"model": NUMPY, "args": argparse.Namespace(num_heads=malice)},
        }[where],
        tmp_path / "x.pth",
    )
    with pytest.raises(ModelError, match=r"refused: it references .* nothing was executed"):
        read_foreign(tmp_path / "x.pth")
    assert not marker.exists()


def test_refusal_names_what_was_asked_for(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "x.pth")
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict\(\)"):
        read_foreign(tmp_path / "x.pth")
    save_pickle(4)(Malice(os.system, "true"), tmp_path / "x.pkl")
    with pytest.raises(ModelError, match=rf"{os.name}\.system"):
        read_foreign(tmp_path / "x.pkl")


def test_object_arrays_in_npz_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    array = np.array([Malice(os.system, f"touch {marker}")], dtype=object)
    np.savez(tmp_path / "x.npz", a=array)
    with pytest.raises(ModelError, match="damaged or not a checkpoint"):
        read_foreign(tmp_path / "x.npz")
    assert not marker.exists()


@pytest.mark.parametrize("save", [torch.save, save_old, save_pickle(4)])
def test_truncated_files_are_one_clear_error(tmp_path: Path, save: Save) -> None:
    save({"model": NUMPY}, tmp_path / "x.pth")
    content = (tmp_path / "x.pth").read_bytes()
    for length in range(0, len(content), max(1, len(content) // 25)):
        (tmp_path / "x.pth").write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"x\.pth: (damaged|not|refused)"):
            read_foreign(tmp_path / "x.pth")


def test_noise_is_one_clear_error(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for start in (b"", b"\x80\x02", b"\x80\x04", b"PK\x03\x04"):
        for _ in range(20):
            (tmp_path / "x.pth").write_bytes(start + random.bytes(200))
            with pytest.raises(ModelError):
                read_foreign(tmp_path / "x.pth")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_programs_and_own_files_are_distinguished(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "x.pt"))
    with pytest.raises(ModelError, match="TorchScript program"):
        read_foreign(tmp_path / "x.pt")
    card = Card("x", "encoder", "encoder", {}, (), 1.0)
    write_weights(tmp_path / "x.safetensors", card, WEIGHTS)
    with pytest.raises(ModelError, match="already a costream weight file"):
        read_foreign(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list, not weights"),
        (torch.ones(2), "holds a Tensor, not weights"),
        ({"epoch": 3}, r"no tensors; its entries: epoch \(int\)"),
        ({}, "no tensors; its entries: none"),
        ({**WEIGHTS, "epoch": 3}, r"not plain tensors: epoch \(int\)"),
    ],
)
def test_files_without_weights(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ModelError, match=message):
        read_foreign(tmp_path / "x.pth")


def test_missing_file_folder_and_text(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_foreign(tmp_path / "nowhere.pth")
    with pytest.raises(ModelError, match="cannot be read"):
        read_foreign(tmp_path)
    (tmp_path / "x.pth").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match="not a checkpoint"):
        read_foreign(tmp_path / "x.pth")


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """A class of Lightning's, which is not installed here."""
    name = "pytorch_lightning.callbacks.model_checkpoint"
    for part in ("pytorch_lightning", "pytorch_lightning.callbacks", name):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    made = type("ModelCheckpoint", (), {"__module__": name})
    sys.modules[name].ModelCheckpoint = made  # type: ignore[attr-defined]
    return made


def scheduler() -> dict[str, Any]:
    """The state of a scheduler as older versions of torch save it, with one of its methods."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    made = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    method = Malice(getattr, torch.optim.lr_scheduler.OneCycleLR, "_annealing_cos")
    return {**made.state_dict(), "anneal_func": method}


def test_classes_of_a_trainer_next_to_the_weights_are_not_needed(
    trainer: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {
        "callbacks": {trainer: {"best_model_path": "x.ckpt"}},
        "callback": trainer(),
        "lr_schedulers": [scheduler()],
        "hyper_parameters": {"pool_size": -1},
        "state_dict": {f"model.{name}": value for name, value in WEIGHTS.items()},
    }
    torch.save(state, tmp_path / "x.ckpt")
    monkeypatch.delitem(sys.modules, trainer.__module__)
    check(tmp_path / "x.ckpt")
    assert read_foreign(tmp_path / "x.ckpt").args == {"pool_size": -1}


@pytest.mark.parametrize("kind", ["system", "getattr", "import"])
def test_code_next_to_a_trainers_class_is_refused_all_the_same(
    trainer: type[Any], tmp_path: Path, kind: str
) -> None:
    marker = tmp_path / "marker"
    malice = {**malices(marker), "import": Malice(__import__, "os")}[kind]
    state = {"callbacks": {trainer: 1}, "state_dict": WEIGHTS, "x": malice}
    torch.save(state, tmp_path / "x.ckpt")
    with pytest.raises(ModelError, match=r"refused: it references .* nothing was executed"):
        read_foreign(tmp_path / "x.ckpt")
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"module." + k: v for k, v in WEIGHTS.items()} | {"n_averaged": torch.tensor(5)},
        {"state_dict": {"net." + k: v for k, v in WEIGHTS.items()}},
        {f"0._orig_mod.{k.partition('.')[2]}": v for k, v in WEIGHTS.items()},
        {"ema": {"decay": 0.9, "module": WEIGHTS}},
        {k: v.to(torch.bfloat16) for k, v in WEIGHTS.items()},
        {k: v.half() for k, v in WEIGHTS.items()},
        {
            "model": WEIGHTS,
            "logs": collections.defaultdict(list, {"loss": [0.5]}),
            "folder": Path("/tmp/x"),
            "slice": slice(1, 2),
            "types": [int, str, float, dict],
        },
    ],
)
def test_states_of_training_tools(tmp_path: Path, content: dict[str, object]) -> None:
    torch.save(content, tmp_path / "x.pth")
    check(tmp_path / "x.pth")


@pytest.mark.parametrize(
    "name",
    ["omegaconf.dictconfig.DictConfig", "mmengine.logging.history_buffer.HistoryBuffer"],
)
def test_configuration_and_logs_are_not_needed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, title = name.rpartition(".")
    kind = type(title, (), {"__module__": module})
    for end in range(1, module.count(".") + 2):
        part = ".".join(module.split(".")[:end])
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setattr(sys.modules[module], title, kind, raising=False)
    value = kind()
    vars(value).update(_content={"lr": 0.1}, _history=np.arange(3.0))
    torch.save({"state_dict": WEIGHTS, "hyper_parameters": value}, tmp_path / "x.pth")
    check(tmp_path / "x.pth")


def test_averaged_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.pth"
    plain = {name: value * 0 for name, value in WEIGHTS.items()}
    torch.save({"state_dict": plain, "state_dict_ema": WEIGHTS}, path)
    assert not any(value.any() for value in read_foreign(path).tensors.values())
    assert "'state_dict' (plain) and 'state_dict_ema' (ema) the first are taken" in caplog.text
    assert "--config weights=ema takes the others" in caplog.text
    averaged = read_foreign(path, "ema").tensors
    assert all(torch.equal(averaged[name], value) for name, value in WEIGHTS.items())
    flat = {f"online_model.{k}": v * 0 for k, v in WEIGHTS.items()}
    flat |= {f"ema_model.{k}": v for k, v in WEIGHTS.items()}
    torch.save(flat, path)  # of ema-pytorch
    averaged = read_foreign(path, "ema").tensors
    assert all(torch.equal(averaged[name], value) for name, value in WEIGHTS.items())
    torch.save({"state_dict": WEIGHTS}, path)
    with pytest.raises(ModelError, match="contains no averaged weights"):
        read_foreign(path, "ema")


@pytest.mark.parametrize(
    "others",
    [
        lambda plain: {
            "ema_state_dict": {"steps": torch.tensor(2)}
            | {f"module.{k}": v for k, v in plain.items()},
            "message_hub": {"log_scalars": {}},
        },
        lambda plain: {
            "current_model_state": plain,
            "averaging_state": {"n_averaged": torch.tensor(2)},
        },
    ],
    ids=["mmengine", "lightning"],
)
def test_trainers_that_store_averaged_weights_as_the_state(
    tmp_path: Path, others: Callable[..., dict[str, object]], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.pth"
    plain = {name: value * 0 for name, value in WEIGHTS.items()}
    torch.save({"state_dict": WEIGHTS, **others(plain)}, path)
    check(path)
    assert "'state_dict' (ema) and " in caplog.text
    assert "--config weights=plain takes the others" in caplog.text
    averaged, current = read_foreign(path, "ema").tensors, read_foreign(path, "plain").tensors
    assert all(torch.equal(averaged[name], value) for name, value in WEIGHTS.items())
    assert current.keys() == WEIGHTS.keys()
    assert not any(value.any() for value in current.values())


def test_weights_below_a_name(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    both = {"student." + k: v for k, v in WEIGHTS.items()}
    torch.save({**both, "teacher.0.bias": torch.zeros(2)}, path)
    assert read_foreign(path, "student").tensors.keys() == WEIGHTS.keys()
    with pytest.raises(ModelError, match=r"begins with 'pupil'; .*: student, teacher"):
        read_foreign(path, "pupil")


def test_parts_of_safetensors(tmp_path: Path) -> None:
    names = [f"m-0000{k}-of-00002.safetensors" for k in (1, 2)]
    for name, (key, value) in zip(names, WEIGHTS.items(), strict=True):
        save_file({key: value}, tmp_path / name)
    check(tmp_path / names[0])
    other = tmp_path / "other.pth"
    paths = [tmp_path / names[1], other, tmp_path / names[0], other]
    assert without_parts(paths) == [tmp_path / names[1], other, other]
    listed = dict(zip(WEIGHTS, names, strict=True))
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": listed}), "utf-8")
    check(index)
    (tmp_path / names[1]).unlink()
    with pytest.raises(ModelError, match=f"one of 2 parts, of which {names[1]} are missing"):
        read_foreign(tmp_path / names[0])


def test_the_nearest_format_is_named(tmp_path: Path) -> None:
    path, weight = tmp_path / "x.pth", torch.ones(2, 2)
    names = ["layers.0.self_attn.in_proj_weight", "layers.0.linear1.weight"]
    torch.save({"a.b": weight, **{f"student.{name}": weight for name in names}}, path)
    says = r"without the start 'student\.', 2 of them are of the format torch; --config weights="
    with pytest.raises(ModelError, match=says):
        import_files([path], "x", {}, None)
    torch.save({"a.b": weight, "x.y.layers.0.linear1.weight": weight}, path)
    with pytest.raises(ModelError, match=f"the nearest is torch, which has {names[0]}, {names[1]}"):
        import_files([path], "x", {}, None)
