"""Steps in ONNX Runtime in place of ours: the same records, states and refusals."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costream
from costream.__main__ import main
from costream.core.errors import ModelError
from costream.core.records import AudioBlock, Prediction, VideoFrame
from costream.models.build import save_model
from costream.models.catalogue import load_model
from costream.models.export import export_step
from costream.models.onnx_step import execution_provider
from costream.models.random_init import random_model
from costream.weights_io.file import read_card

BOX = (32, 24)
FRONTEND = {"box": BOX, "widths": (4, 4, 6, 8), "motion_width": 4, "lags": (1, 3)}
FRONTEND["glimpse_width"] = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the weights of a small model for video, and its step in ONNX."""
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    folder = tmp_path_factory.mktemp("step")
    settings = {"num_classes": 3, "embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 4}
    settings |= {f"frontend.{key}": list(value) if isinstance(value, tuple) else value
                 for key, value in FRONTEND.items()}  # fmt: skip
    card, network, frontend = random_model("cooadtr", "tiny", settings, "tdn", 0)
    for parameter in network.parameters():
        parameter.data *= 3
    weights, step = folder / "tiny.safetensors", folder / "step.onnx"
    save_model(weights, replace(card, trained_on="nothing"), network, frontend)
    export_step(str(weights), step, whole=True)
    return weights, step


def pictures(count, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, BOX[1], BOX[0], 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def crops(files):
    """Return the weights of a small MoViNet, and its step in ONNX."""
    settings = {"num_classes": 3, "size": 22, "stem": 8, "outputs": [8], "head": 16, "hidden": 8}
    settings |= {"blocks": [[[16, 1, 5], [16, 3, 3]]], "window": 4}
    settings |= {"frontend.size": 22, "frontend.short_side": 24}
    card, network, frontend = random_model("movinet", "crops", settings, None, 0)
    weights, step = (files[0].with_name(f"crops{end}") for end in (".safetensors", ".onnx"))
    save_model(weights, replace(card, trained_on="nothing"), network, frontend)
    export_step(str(weights), step, whole=True)
    return weights, step


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("yamnet", {"widths": [4] * 14}),
        pytest.param("efficientat", {"width": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_windows_of_sound_are_heard_alike(files, architecture, sizes):
    card, network, frontend = random_model(architecture, "y", sizes, None, 0)
    network.classifier.weight.data *= 0.01
    weights, step = (files[0].with_name(f"y{end}") for end in (".safetensors", ".onnx"))
    save_model(weights, replace(card, trained_on="nothing"), network, frontend)
    export_step(str(weights), step)
    models = [load_model(str(file)) for file in (weights, step)]
    sound = np.random.default_rng(0).normal(0, 0.1, (6, frontend.block)).astype(np.float32)
    blocks = [AudioBlock(k, k / card.rate_hz, block) for k, block in enumerate(sound)]
    states = [model.init_state(1) for model in models]
    for part in (blocks[:1], blocks[1:]):
        rows = [m.steps(part, state) for m, state in zip(models, states, strict=True)]
        for ours, theirs in zip(*rows, strict=True):
            np.testing.assert_allclose(theirs.probabilities, ours.probabilities, atol=1e-5)
            assert theirs.warmup == ours.warmup
    assert ours.probabilities.sum() > 2  # of several kinds at once


def test_objects_of_pictures_of_any_shape_are_those_of_the_weights(files, capsys):
    settings = {"classes": 2, "stages": [[8, 1], [12, 1], [16, 1]], "width": 8, "score": 0.5}
    card, network, frontend = random_model("nanodet", "objects", settings, None, 0)
    for head in network.heads:
        head[-1].weight.data *= 30
    weights, step = (files[0].with_name(f"objects{end}") for end in (".safetensors", ".onnx"))
    save_model(weights, replace(card, trained_on="nothing"), network, frontend)
    export_step(str(weights), step)
    models = [load_model(str(file), device="cpu") for file in (weights, step)]
    random = np.random.default_rng(0)
    for size in ((416, 416), (60, 200)):
        frame = VideoFrame(0, 0.0, 0, random.integers(0, 256, (*size, 3), np.uint8).copy)
        ours, theirs = (model.step([frame], model.init_state()) for model in models)
        assert ours.macs == theirs.macs > 0
        pairs = list(zip(ours.objects[0], theirs.objects[0], strict=True))
        assert len(pairs) > 5
        for one, other in pairs:
            assert one.label == other.label
            for side in ("x1", "y1", "x2", "y2", "score"):
                assert getattr(one, side) == pytest.approx(getattr(other, side), abs=1e-2)
    export_step(str(weights), step, whole=True)
    assert main(["detect", "samples/room.mp4", "-m", str(step), "-o", "-"]) == 5
    assert "or export it without --whole" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["files", "crops"])
def test_records_are_those_of_the_weights(kind, request):
    files = request.getfixturevalue(kind)
    runs = [list(costream.detect(pictures(20), rate_hz=8, model=str(f))) for f in files]
    texts = [[type(event).__name__ for event in events] for events in runs]
    assert texts[0] == texts[1]
    assert "Prediction" in texts[0]
    for ours, theirs in zip(*runs, strict=True):
        if isinstance(ours, Prediction):
            assert replace(ours, top=()) == replace(theirs, top=())
            found, expected = dict(theirs.top), dict(ours.top)
            assert found == pytest.approx(expected, abs=1e-5)


def test_streams_are_reset_and_exchanged_as_ours(files):
    models = [load_model(str(file)) for file in files]
    items = [VideoFrame(k, k / 8, k, p.copy) for k, p in enumerate(pictures(36, 1))]
    rows = []
    for model in models:
        state = model.init_state(2)
        found = [model.step(items[k : k + 2], state) for k in range(0, 12, 2)]
        state.reset([1])
        other = model.init_state(1)
        other.load_tensors({k: v.clone() for k, v in state.take([0]).tensors().items()})
        state = type(state).cat([state, other])
        assert state.batch_size == 3
        found += [model.step(items[k : k + 3], state) for k in range(12, 36, 3)]
        rows.append([(r.probabilities, r.warmup) for r in found])
    for (ours, warm), (theirs, still_warm) in zip(*rows, strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-5)
        assert warm == still_warm


def test_a_file_has_its_card(files, capsys):
    for option, words in (((), "a step in ONNX, "), (("--json",), '"parameters": null')):
        main(["models", "show", str(files[1]), *option])
        assert words in capsys.readouterr().out
    assert read_card(files[1]) == read_card(files[0])
    assert len({load_model(str(file)).info.weights_sha256 for file in files}) == 1


def test_refusals_are_one_line(files, tmp_path, monkeypatch, capsys):
    import onnx

    def refusal(path, *options):
        assert main(["detect", "samples/room.mp4", "-m", str(path), "-o", "-", *options]) == 5
        (line,) = capsys.readouterr().err.splitlines()
        return line

    whole = files[1].read_bytes()
    (tmp_path / "text.onnx").write_text("no")
    assert "not an ONNX file" in refusal(tmp_path / "text.onnx")
    model = onnx.load_from_string(whole)
    del model.graph.node[3]
    onnx.save(model, tmp_path / "torn.onnx")
    assert "ONNX Runtime rejects the file" in refusal(tmp_path / "torn.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    assert "has no model card" in refusal(tmp_path / "foreign.onnx")
    export_step("cosounds", tmp_path / "sound.onnx", whole=True)
    assert "not faster in ONNX Runtime; give its weights" in refusal(tmp_path / "sound.onnx")
    export_step("pose", tmp_path / "pose.onnx")
    assert "finds joints for other models" in refusal(tmp_path / "pose.onnx")
    export_step(str(files[0]), str(tmp_path / "alone.onnx"))
    assert "export it with --whole" in refusal(tmp_path / "alone.onnx")
    assert "on the processor, in float32" in refusal(files[1], "--dtype", "bfloat16")
    assert "cannot be combined" in refusal(f"{files[1]},cooadtr")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "costream[onnx]" in refusal(files[1])
    with pytest.raises(ModelError, match="not weights"):
        export_step(str(files[1]), tmp_path / "again.onnx")


@given(st.data())
def test_damaged_files_are_refused(files, data):
    whole = bytearray(files[1].read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    path = files[1].with_name("damaged.onnx")
    path.write_bytes(whole[:at])
    with pytest.raises(ModelError):
        load_model(str(path))


@pytest.mark.parametrize("text", ["cpu", "CPU"])
def test_a_step_runs_by_a_provider_of_onnx_runtime(files, text):
    frame = VideoFrame(0, 0.0, None, lambda: pictures(1)[0])
    scores = []
    for provider in (None, text):
        model = load_model(str(files[1]), provider=provider)
        scores.append(model.step([frame], model.init_state()).probabilities)
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("cuda:1", ("CUDAExecutionProvider", {"device_id": "1"})),
        ("OpenVINO:NPU", ("OpenVINOExecutionProvider", {"device_type": "NPU"})),
        ("cuda", ("CUDAExecutionProvider", {})),
    ],
)
def test_providers_have_their_names_in_onnx_runtime(text, provider):
    here = ["CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider"]
    assert execution_provider(text, here) == provider


def test_a_provider_that_does_not_start_is_refused(files, monkeypatch, capsys):
    import onnxruntime

    names = ["CUDAExecutionProvider", "AzureExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    for provider, reason in (("cuda", "did not start"), ("azure", "no provider 'azure'")):
        assert main(["detect", "-", "-m", str(files[1]), "--provider", provider]) == 5
        assert reason in capsys.readouterr().err
    assert main(["detect", "-", "-m", str(files[0]), "--provider", "cpu"]) == 2
    assert "does not run in ONNX Runtime" in capsys.readouterr().err
