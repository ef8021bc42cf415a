"""Import of official checkpoints and their scores on feature files, as in the papers."""

from __future__ import annotations

import pickle
import wave
from argparse import Namespace

import numpy as np
import pytest

from kit import paths
from kit.runs import records, run

REFS = paths.REFS / "transformers"
needs_refs = pytest.mark.skipif(
    not REFS.is_dir(), reason="needs the reference arrays: put them at ../shared/refs/transformers"
)


def reference(folder, name, prefix=""):
    """Return the arrays of a network of the authors; write its weights as their checkpoint."""
    torch = pytest.importorskip("torch")
    with np.load(REFS / f"{name}.npz") as file:
        arrays = dict(file)
    state = {f"{prefix}{k[3:]}": torch.from_numpy(v) for k, v in arrays.items() if k[:3] == "sd/"}
    torch.save(state, folder / "checkpoint.pth")
    return arrays, state


def import_model(folder, *values, parts=("checkpoint.pth",)):
    """Import weights as ``mine.safetensors``; ``values``: of its configuration."""
    config = [word for value in values for word in ("--config", value)]
    run("models", "import", *parts, "-o", "mine.safetensors", *config, cwd=folder)


def predictions(folder, command, file, *options):
    text = run(
        command, file, "-m", "mine.safetensors", "--scores", "-f", "jsonl", *options, cwd=folder
    ).stdout
    return records(text, "prediction")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@needs_refs
def test_official_oadtr_on_thumos_pickles(tmp_path):
    torch = pytest.importorskip("torch")
    arrays, state = reference(tmp_path, "oadtr_learned", "module.")
    arguments = Namespace(num_heads=4, decoder_num_heads=4, enc_layers=64)
    torch.save({"model": state, "epoch": 4, "args": arguments}, tmp_path / "checkpoint.pth")
    features = {
        "video_test_0000004": {"rgb": arrays["rgb"], "flow": arrays["flow"]},
        "video_test_0000006": {"rgb": arrays["rgb"][:70], "flow": arrays["flow"][:70]},
    }
    (tmp_path / "features.pickle").write_bytes(pickle.dumps(features))
    import_model(tmp_path, "labels=thumos14", "decoder_heads=4")
    predictions(tmp_path, "detect", "features.pickle", "--wait", "--top-k", 22, "-o", "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "features.pickle#video_test_0000004.jsonl",
        "features.pickle#video_test_0000006.jsonl",
    ]
    lines = records(tmp_path / "out" / "features.pickle#video_test_0000004.jsonl")
    header, found = lines[0], [r for r in lines if r["type"] == "prediction"]
    assert header["labels"][:3] == ["Background", "BaseballPitch", "BasketballDunk"]
    assert header["rate_hz"] == 4
    assert [p["i"] for p in found] == list(range(63, 80))
    expected = softmax(arrays["out_x"].astype(np.float64))
    np.testing.assert_allclose([p["scores"] for p in found], expected, atol=2e-6)
    # Records hold six decimals. Anticipation is ranked: put it back into the order of the classes.
    future = [[dict(step) for step in p["anticipation"]] for p in found]
    ordered = [[[step[label] for label in header["labels"]] for step in p] for p in future]
    expected = softmax(arrays["out_dec"].astype(np.float64))
    np.testing.assert_allclose(ordered, expected, atol=2e-6)


@needs_refs
@pytest.mark.parametrize(
    "name", ["cooadtr_b1_recycling_learned_64", "cooadtr_b2_recycling_fixed_127"]
)
def test_cooadtr_on_npy_features(tmp_path, name):
    arrays, _ = reference(tmp_path, name)
    np.save(tmp_path / "features.npy", arrays["x"])
    import_model(tmp_path, "labels=thumos14", "num_heads=4", "window=64")
    found = predictions(tmp_path, "detect", "features.npy", "--wait")
    expected = softmax(arrays["window_out"].astype(np.float64))
    np.testing.assert_allclose([p["scores"] for p in found], expected, atol=2e-5)


@needs_refs
def test_deepcot_on_feature_rows(tmp_path):
    arrays, _ = reference(tmp_path, "deepcot_L3")
    np.save(tmp_path / "song.npy", arrays["x"][0].T)
    import_model(tmp_path, "labels=gtzan", "num_heads=4", "window=8")
    found = predictions(tmp_path, "detect", "song.npy", "--wait")
    # Until every block's window is full, the authors' network gives nothing, and so does --wait.
    assert [p["i"] for p in found] == list(range(int(arrays["first_step"]), 140))
    expected = softmax(arrays["step_out"][:, 0].astype(np.float64))
    np.testing.assert_allclose([p["scores"] for p in found], expected, atol=2e-6)


def test_cotrans_listens_through_vggish(tmp_path):
    torch = pytest.importorskip("torch")
    from costream.models.audio.vggish import VGGish
    from kit import foreign_sound

    torch.manual_seed(0)
    sizes = {"widths": (2, 3, 4, 4, 5, 5), "hidden": 6}
    theirs, network = foreign_sound.cotrans()
    front = VGGish(**sizes).eval()
    front.load_state_dict(foreign_sound.vggish(**sizes))
    torch.save(theirs, tmp_path / "cotrans.pth")
    torch.save(foreign_sound.vggish(**sizes), tmp_path / "vggish.pth")
    noise = np.random.default_rng(0).standard_normal(40_000)
    samples = (6000 * noise).clip(-32_767, 32_767).astype("<i2")
    with wave.open(str(tmp_path / "song.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    parts = ("cotrans.pth", "vggish.pth")
    import_model(tmp_path, "labels=gtzan", "num_heads=4", "window=6", parts=parts)
    text = run(
        "listen", "song.wav", "-m", "mine.safetensors", "--scores", "-f", "jsonl", cwd=tmp_path
    ).stdout
    header, found = records(text)[0], records(text, "prediction")
    assert (header["labels"][0], header["rate_hz"]) == ("blues", 4)
    assert [p["time_s"] for p in found] == [0.25 * k for k in range(1, 11)]
    blocks = torch.from_numpy((samples / 32_768).astype(np.float32)).view(1, 10, 4000)
    with torch.no_grad():
        expected = network(front(blocks)).logits[0].softmax(-1).numpy()
    np.testing.assert_allclose([p["scores"] for p in found], expected, atol=1e-5)


CODE = """
import torch
import costream.nn as co
from costream.models.converted import ContinualClassifier
from costream.models.spec import register_model


@register_model("my-tcn", arguments={"input_width": 3, "num_classes": 2})
class MyTcn(ContinualClassifier):
    def __init__(self, input_width, num_classes):
        convolution = torch.nn.Conv1d(input_width, num_classes, 5, padding=2)
        super().__init__(co.convert(convolution, torch.zeros(1, input_width, 16)))
"""


def test_a_network_of_your_own_code(tmp_path):
    (tmp_path / "my.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("raise KeyError('oops')")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(30, 3)).astype("f4"))
    run("--code", "my.py", "models", "init", "my-tcn", "-o", "mine.safetensors", cwd=tmp_path)
    options = ("-m", "mine.safetensors", "--scores")
    done = run(
        "--code",
        "my.py",
        "detect",
        "-m",
        "cooadtr",
        "rows.npy",
        *options,
        "-f",
        "jsonl",
        cwd=tmp_path,
    )
    found = records(done.stdout, "prediction")
    assert len(found) == 28  # two steps later than the rows
    unknown = run("detect", "-m", "cooadtr", "rows.npy", *options, cwd=tmp_path, code=5)
    assert "unknown architecture" in unknown.stderr
    broken = run("--code", "broken.py", "detect", "-m", "cooadtr", "rows.npy", cwd=tmp_path, code=2)
    assert "broken.py: KeyError" in broken.stderr
