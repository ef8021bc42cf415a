"""Networks of a user's file: what they take is told by their example, and the commands run them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from costream.core.errors import ModelError
from costream.core.records import AudioBlock, FeatureRow
from costream.core.user_code import run_code, split_spec
from costream.models.build import save_model
from costream.models.catalogue import load_model
from costream.models.streaming import StreamingModel
from costream.models.user_network import import_user_network, user_plan
from kit.data_skeleton import write_act
from kit.media import make_video
from kit.runs import records, run

CODE = """
import torch
from torch import nn

MEAN = {"approximate": ["running mean"]}


class Net(nn.Module):
    def __init__(self, conv, dims):
        super().__init__()
        self.conv, self.dims, self.head = conv, dims, nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean(self.dims))


def rows():
    return Net(nn.Conv1d(5, 4, 3, padding=1), (2,)), torch.zeros(1, 5, 8), {**MEAN, "time_axis": 2}

def pictures():
    return Net(nn.Conv3d(3, 4, 3, 1, 1), (2, 3, 4)), torch.zeros(1, 3, 6, 14, 14), MEAN

def mel():
    return Net(nn.Conv2d(1, 4, (64, 3)), (2, 3)), torch.zeros(1, 1, 64, 40), MEAN

def strided():
    return Net(nn.Conv2d(1, 4, (64, 3), (1, 2)), (2, 3)), torch.zeros(1, 1, 64, 40), MEAN

def fitting():
    return *strided()[:2], {**MEAN, "frontend_arguments": {"hop_frames": 20}}

def skeleton():
    return Net(nn.Conv2d(3, 4, (3, 1), padding=(1, 0)), (2, 3)), torch.zeros(1, 3, 9, 15), MEAN

def skeletons():
    return Net(nn.Conv3d(3, 4, (3, 1, 1)), (2, 3, 4)), torch.zeros(1, 3, 9, 15, 2), MEAN

def frames():
    return nn.Conv1d(5, 3, 3, padding=1), torch.zeros(1, 5, 8), {"time_axis": 2}

def whole():
    return Net(nn.Conv1d(5, 4, 3, padding=1), (2,)), torch.zeros(1, 5, 8), {"time_axis": 2}

def attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return net, torch.zeros(1, 64, 8), {"approximate": ["windowed attention"]}

def halved():
    return nn.Conv1d(5, 3, 3, stride=2), torch.zeros(1, 5, 9), {"time_axis": 2}

def nothing():
    return None

def odd():
    return Net(nn.Conv3d(3, 4, 3, 1, 1), (2, 3, 4)), torch.zeros(1, 3, 6, 14, 20), MEAN

def misspelt():
    return *rows()[:2], {"aproximate": []}
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(CODE)
    run_code(path)
    return path


def loaded(code: Path, function: str, folder: Path) -> StreamingModel:
    card, tensors, _ = import_user_network(code, function, None, function, {})
    path = folder / "m.safetensors"
    network = user_plan(code.name, function).module
    network.load_state_dict({k.removeprefix("network.network."): v for k, v in tensors.items()})
    holder = torch.nn.Module()
    holder.network = network
    save_model(path, card, holder)
    model = load_model(str(path))
    assert isinstance(model, StreamingModel)
    return model


@pytest.mark.parametrize(
    ("function", "frontend", "width"),
    [
        ("rows", None, 5),
        ("pictures", "crop", None),
        ("mel", "logmel", None),
        ("skeleton", "joints", None),
        ("skeletons", "joints", None),
    ],
)
def test_the_example_determines_the_frontend(
    code: Path, function: str, frontend: str | None, width: int | None
) -> None:
    card, tensors, report = import_user_network(code, function, None, "mine", {"rate_hz": "8"})
    assert (card.frontend, card.arguments.get("input_width")) == (frontend, width)
    assert card.rate_hz == (4 if function == "mel" else 8)
    assert card.labels == ("class 0", "class 1", "class 2")
    assert "network.network.conv.weight" in tensors
    assert "running over" in report


def test_steps_are_those_of_the_network(code: Path, tmp_path: Path) -> None:
    model = loaded(code, "rows", tmp_path)
    rows = torch.randn(20, 5)
    state, outs = model.init_state(), []
    for row in rows:
        result = model.step([FeatureRow(0.0, 0, row.numpy())], state)
        outs += [] if result.probabilities is None else [result.probabilities[0]]
    plain = model.network.network
    hidden = torch.relu(plain.conv(rows.T[None]))[..., :-1]  # padding at the end is delay
    for k in range(8, 19):
        mean = hidden[..., k - 7 : k + 1].mean(-1)
        expected = plain.head(mean).softmax(-1)[0].detach().numpy()
        np.testing.assert_allclose(outs[k], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "macs", "frames"),
    [
        ("attention", 2 * (4 * 64 + 2 * 64 * 8 + 2 * 8 * 16), 64),  # 127 are remembered
        ("halved", 5 * 3 * 3 // 2, 1.5),
        ("rows", 3 * 5 * 4 + 4 * 3, 8),
    ],
)
def test_costs(code: Path, tmp_path: Path, function: str, macs: int, frames: float) -> None:
    network = loaded(code, function, tmp_path).network
    assert (network.count_macs(), network.dense_macs) == (macs, int(frames * macs))


def test_sound_is_stepped_by_blocks(code: Path, tmp_path: Path) -> None:
    model = loaded(code, "mel", tmp_path)
    sound = model.info.sound
    assert sound is not None
    assert sound.block == 4000
    rng = np.random.default_rng(0)
    blocks = [
        AudioBlock(0.0, 0, rng.normal(size=sound.block).astype(np.float32) / 9) for _ in range(6)
    ]
    one, other = model.init_state(), model.init_state()
    singly = [model.step([block], one) for block in blocks]
    together = model.steps(blocks, other)
    for a, b in zip(singly, together, strict=True):
        assert a.probabilities is not None
        assert b.probabilities is not None
        np.testing.assert_allclose(a.probabilities, b.probabilities, atol=1e-6)
        assert a.warmup == b.warmup
    assert [result.warmup[0] for result in singly] == [True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("frames", ""),
        ("whole", "allow it: approximate="),
        ("nothing", "own.py:nothing: does not return a module"),
        ("odd", r"\[1, 3, 6, 14, 20\]: not one of"),
        ("fitting", ""),
        ("strided", "own.py:strided: its stride of 2 frames does not divide 25, of a step"),
        ("misspelt", "unknown options: aproximate"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_what_cannot_be_imported(code: Path, function: str, words: str) -> None:
    if not words:  # one output a frame is taken too
        assert import_user_network(code, function, None, "mine", {})[0].labels[2] == "class 2"
        return
    with pytest.raises(ModelError, match=words):
        import_user_network(code, function, None, "mine", {})


def test_specs() -> None:
    assert split_spec("a/my.py:build") == (Path("a/my.py"), "build")
    assert split_spec("my.pth") is split_spec("my.py") is split_spec("my.py:2") is None


def test_from_the_command_line(code: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "names.txt").write_text("background\nwave\nclap\n")
    plan = user_plan(code.name, "skeleton")
    torch.save({"model": plan.module.state_dict()}, tmp_path / "w.pth")
    given = ("models", "import", "own.py:skeleton", "--weights", "w.pth", "-o", "m.safetensors")
    done = run(*given, "--config", "labels=names.txt", cwd=tmp_path)
    assert "clip against steps" in done.stderr
    assert "Run it with: costream --code own.py ... -m m.safetensors\n" in done.stderr
    write_act(tmp_path / "j.csv", "wave", 0, 12)
    options = ("detect", "j.csv", "-m", "m.safetensors", "-o", "-")
    found = records(run("--code", "own.py", *options, cwd=tmp_path).stdout, "prediction")
    assert {label for label, _ in found[-1]["top"]} == {"background", "wave", "clap"}
    assert "costream --code own.py" in run(*options, cwd=tmp_path, code=5).stderr
    wrong = run(*given[:2], "own.py:rows", *given[3:5], "-o", "n.safetensors", cwd=tmp_path, code=5)
    assert "w.pth: do not fit the network" in wrong.stderr
    run("models", "import", "w.pth", "--weights", "w.pth", cwd=tmp_path, code=2)


@pytest.mark.long
def test_workers_of_a_batch_run_the_file(code: Path, tmp_path: Path) -> None:
    loaded(code, "pictures", tmp_path)
    (tmp_path / "own.py").write_text(CODE)
    make_video(tmp_path / "v.mp4", 40, size=(32, 32))
    args = ("batch", "v.mp4", "-m", "m.safetensors", "-o", "out", "--jobs", "2")
    run("--code", "own.py", *args, cwd=tmp_path)
    assert (tmp_path / "out" / "failures.csv").read_text().count("\n") == 1
    assert len(records(next((tmp_path / "out").rglob("v.mp4.jsonl")).read_text(), "prediction")) > 5
