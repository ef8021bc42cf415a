"""Conformance of every registered frontend to the protocol in ``frontends/base.py``."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from costream.core.errors import ModelError
from costream.core.layouts import BODY_15
from costream.core.records import SkeletonFrame, VideoFrame
from costream.models.build import save_model
from costream.models.catalogue import load_model
from costream.models.frontend import FRONTENDS, frontend_class, load_frontend
from costream.models.oad.miniroad import MiniRoad
from costream.nn.state import State
from costream.weights_io.card import Card
from kit.paths import ROOT
from kit.tsn_nets import SMALL as SMALL_TSN

TDN = {"box": (32, 24), "lags": (1, 3), "widths": (8, 8, 8, 8)}
AUDIO = {"token_width": 16, "widths": (4,) * 7, "feature_width": 8}
FEATURES = {"width": 0.1, "hop_frames": 25, "window_frames": 100, "sample_rate_hz": 16_000}
MOVINET = {
    "size": 32,
    "stem": 8,
    "outputs": [8, 16],
    "head": 24,
    "window": 5,
    "blocks": [[[16, 1, 5]], [[24, 3, 3], [16, 1, 3]]],
}
X3D = {"size": 19, "short_side": 24, "widths": (8, 12), "depths": (1, 2), "stem_width": 4}
GRAPH = {
    "joints": 15,
    "bones": [list(bone) for bone in BODY_15.bones],
    "channels": 6,
    "persons": 1,
    "widths": [4, 6],
    "strides": [1, 1],
    "kernel": 3,
    "padding": "causal",
}
JOINTS = {"layout": "body-15", "streams": ["joint", "joint_motion"]}
# name -> arguments of a small one, and the shape of an item as ``forward_step`` takes it
SMALL: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "tdn": ({**TDN, "glimpse_width": 4, "glimpse_every": 2}, (3, 24, 32)),
    "tsn": (SMALL_TSN, (13, 32, 32)),
    "crop": ({"size": 16, "short_side": 20}, (3, 16, 16)),
    "cox3d": ({**X3D, "head": (6, 10), "pool": 4}, (3, 19, 19)),
    "efficientnet-lite": ({"width": 0.25, "size": 32}, (3, 32, 32)),
    "movinet": (MOVINET, (3, 32, 32)),
    "joints": ({"layout": "body-15"}, (2, 15, 4)),
    "skeleton-features": ({**JOINTS, "network": GRAPH, "also": ["joint"]}, (2, 15, 4)),
    "audio": (AUDIO, (4000,)),
    "audiovisual": ({"video_arguments": TDN, "audio_arguments": AUDIO}, (3, 24, 32)),
    "vggish": ({"widths": (2,) * 6, "hidden": 8, "width": 8}, (4000,)),
    "logmel": ({"hop_frames": 25}, (4000,)),
    "moving-part": ({"width": 0.25, "size": 32}, (3, 64, 64)),
    "moving-changes": ({"width": 0.25, "size": 32}, (3, 64, 64)),
    "efficientat": ({"width": 0.1, "hop_frames": 25, "window_frames": 100}, (8000,)),
    "efficientat-mel": ({"hop_frames": 25}, (8000,)),
    "joined-audio": ({"parts": {"audio": AUDIO, "efficientat": FEATURES}}, (4000,)),
    "text": ({"token_width": 8, "buckets": 99}, (38,)),
    "tokenizer": ({"token_width": 8, "vocabulary": 98}, (1,)),
}
GATED = {"pixels", "crops", "resized"}  # of token-gated models: no state
EVERY = pytest.mark.parametrize("name", sorted(SMALL))
STEPS = 9


def small(name: str) -> Any:
    torch.manual_seed(0)
    return load_frontend(name, **SMALL[name][0]).eval().requires_grad_(False)


def streams(name: str, batch: int, steps: int = STEPS) -> Tensor:
    """Return made-up items [steps, batch, ...] of a frontend."""
    shape, generator = SMALL[name][1], torch.Generator().manual_seed(batch)
    if name in ("text", "tokenizer"):  # rows of its table
        return torch.randint(0, 100, (steps, batch, *shape), generator=generator)
    if frontend_class(name).takes == "video":  # type: ignore[attr-defined]
        size = (steps, batch, *shape)
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    return torch.randn(steps, batch, *shape, generator=generator) / 4


def test_every_registered_frontend_is_tested() -> None:
    assert set(SMALL) | GATED == set(FRONTENDS)


@pytest.mark.parametrize("name", list(FRONTENDS))
def test_declares_what_it_takes(name: str) -> None:
    kind = frontend_class(name)
    assert kind.takes in ("video", "skeleton", "audio", "text")  # type: ignore[attr-defined]
    assert callable(getattr(kind, "count_macs", None))
    assert hasattr(kind, "forward" if name in GATED else "forward_step")


@EVERY
def test_one_token_a_step_of_its_width(name: str) -> None:
    net, items = small(name), streams(name, 2)
    state = net.init_state(2)
    for item in items:
        token = net.forward_step(item, state)
        if name in (
            "joints",
            "crop",
            "logmel",
            "efficientat-mel",
        ):  # what a network takes that is not a row
            assert token.shape[0] == 2
        else:
            assert token.shape == (2, net.token_width)
        assert torch.isfinite(token).all()
    assert isinstance(net.count_macs(), int)


@EVERY
def test_a_stream_of_a_batch_gets_what_it_would_alone(name: str) -> None:
    net, items = small(name).double(), streams(name, 3)
    items = items.double() if items.is_floating_point() else items
    batch = net.init_state(3)
    alone = [net.init_state(1) for _ in range(3)]
    for item in items:
        together = net.forward_step(item, batch)
        for k, state in enumerate(alone):
            token = net.forward_step(item[k : k + 1], state)
            torch.testing.assert_close(token[0], together[k])


@pytest.mark.parametrize("name", [n for n in SMALL if hasattr(frontend_class(n), "forward_steps")])
def test_chunks_equal_steps(name: str) -> None:
    net, items = small(name).double(), streams(name, 2)
    items = items.double() if items.is_floating_point() else items
    state, other = net.init_state(2), net.init_state(2)
    tokens = torch.stack([net.forward_step(item, state) for item in items], 1)
    cut = [net.forward_steps(part.transpose(0, 1), other) for part in items.split([4, 5])]
    torch.testing.assert_close(torch.cat(cut, 1), tokens)


@EVERY
def test_states_are_cloned_saved_and_reset(name: str) -> None:
    net, items = small(name), streams(name, 2)
    state = net.init_state(2)
    if not isinstance(state, State):
        assert state is None  # nothing is remembered
        return
    for item in items[:5]:
        net.forward_step(item, state)
    copy, loaded = state.clone(), net.init_state(2)
    loaded.load_tensors({key: value.clone() for key, value in state.tensors().items()})
    expected = [net.forward_step(item, state) for item in items[5:]]
    for other in (copy, loaded):
        again = [net.forward_step(item, other) for item in items[5:]]
        assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
    other, fresh = state.clone(), net.init_state(2)
    state.reset([1])
    for item in items:  # of the other stream nothing is forgotten
        tokens = net.forward_step(item, state)
        torch.testing.assert_close(tokens[0], net.forward_step(item, other)[0])
        torch.testing.assert_close(tokens[1], net.forward_step(item, fresh)[1])


@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"crop", "audiovisual"}))
@torch.no_grad()
def test_the_tokens_of_a_clip_are_those_of_its_steps(name: str) -> None:
    net, items = small(name).double(), streams(name, 2)
    items = items.double() if items.is_floating_point() else items
    state = net.init_state(2)
    tokens = torch.stack([net.forward_step(item, state) for item in items], 1)
    torch.testing.assert_close(net(items.transpose(0, 1)), tokens)


@pytest.mark.parametrize(
    "name", ["tdn", "tsn", "audio", "vggish", "logmel", "efficientat-mel", "efficientnet-lite"]
)
def test_operations_are_those_that_run(name: str) -> None:
    net, items = small(name), streams(name, 1)
    state = net.init_state(1)
    net.forward_step(items[0], state)
    steps = 2 if name == "tdn" else 1  # of which one has a glimpse
    with FlopCounterMode(display=False) as counter:
        for item in items[1 : 1 + steps]:
            net.forward_step(item, state)
    spectrum = 0  # of the Fourier transform, which torch does not count
    if hasattr(net, "mel"):
        frames = net.newest_spectrum(state).shape[1]
        spectrum = net.mel.count_macs(frames) - frames * net.mel.matrix.numel()
    assert net.count_macs() - spectrum == counter.get_total_flops() // 2 // steps


def test_clips_that_are_recomputed_cost_more() -> None:
    net = small("cox3d")
    assert net.dense_macs > 3 * net.count_macs()


@pytest.mark.parametrize("name", ["audio", "vggish", "logmel"])
def test_a_spectrum_is_there_after_a_step(name: str) -> None:
    net, items = small(name), streams(name, 1)
    state = net.init_state(1)
    with pytest.raises(ValueError, match="no audio has been processed"):
        net.newest_spectrum(state)
    net.forward_step(items[0], state)
    expected = net.mel(items[0]) * (1 if name == "audio" else 2)
    torch.testing.assert_close(net.newest_spectrum(state), expected)
    assert state.clone().newest is None


def refuses_image(net: Any, rgb: Any) -> None:
    frames = [VideoFrame(i, i / 24, i, lambda: rgb) for i in range(getattr(net, "frames", 1))]
    with pytest.raises(ValueError, match=r"an image (must be uint8 \[h, w, 3\], not|of)"):
        net.prepare(frames if hasattr(net, "streams") and net.streams else rgb)


@pytest.mark.parametrize("name", [n for n in FRONTENDS if frontend_class(n).takes == "video"])  # type: ignore[attr-defined]
def test_only_images_are_prepared(name: str) -> None:
    net: Any = load_frontend(name, **(SMALL[name][0] if name in SMALL else {}))
    for shape in ((20, 20), (1, 20, 20, 3), (20, 20, 1), (20, 20, 4), (0, 20, 3), (20, 0, 3)):
        refuses_image(net, np.zeros(shape, np.uint8))
    refuses_image(net, np.zeros((20, 20, 3), np.float32))
    refuses_image(net, np.full((20, 20, 3), np.nan))
    if name in ("tdn", "pixels", "audiovisual"):  # the others resize
        refuses_image(net, np.zeros((2000, 20, 3), np.uint8))


def test_only_skeletons_of_their_layout_are_prepared() -> None:
    net, whole = small("joints"), np.zeros((2, 15, 3), np.float32)
    scores = np.ones((2, 15), np.float32)
    assert not net.prepare(SkeletonFrame(0, 0.0, whole[:0], scores[:0], BODY_15)).any()
    broken = whole.copy()
    broken[1, 3, 0] = np.nan
    for joints, given, message in (
        (whole[0], scores, "do not have 3 axes"),
        (whole[..., :2], scores, "do not have 3 axes"),
        (whole[:, :14], scores, "do not fit body-15"),
        (whole, scores[:, :14], "do not fit body-15"),
        (broken, scores, "not finite"),
        (whole, np.full_like(scores, np.inf), "not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            net.prepare(SkeletonFrame(0, 0.0, joints, given, BODY_15))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("retina", {}, "unknown frontend 'retina'"),
    ("tdn", {"colour": "red"}, "frontend 'tdn' does not take these arguments"),
    *(("tdn", {"lags": lags}, "lags must be positive") for lags in ((4, 1), (0,), (2, 2))),
    ("crop", {"size": 30, "short_side": 20}, "size 30 is not between 1 and short_side 20"),
    ("crops", {"size": 0}, "must be positive"),
    ("crops", {"deviation": 0.0}, "must be positive"),
    ("pixels", {"box": [640, 352], "patch": 0}, "does not take these arguments"),
    *(("tsn", {"streams": streams}, "streams must be") for streams in ((), ("flow", "rgb"))),
    *(("tsn", options, "must be at least 2") for options in ({"frames": 1}, {"crop": 300})),
    ("cox3d", {**X3D, "kind": "i3d", "head": ()}, "a token only every 2 frames"),
    ("audio", {"widths": (4, 6, 8, 8, 8, 10, 10)}, "seven"),
    ("vggish", {"output": "pca"}, "not one of relu"),
    ("vggish", {"hop_frames": 97}, "hop_frames"),
    ("vggish", {"widths": (64,)}, "widths"),
    ("logmel", {"hop_frames": 0}, "not positive"),
    ("efficientat-mel", {"hop_frames": 0}, "not positive"),
    ("efficientnet-lite", {"size": 0}, "must be positive"),
    ("audiovisual", {"video": "audio", "audio": "tdn"}, "not a video and an audio frontend"),
    *(
        ("joined-audio", {"parts": parts}, "are not several audio frontends with the same blocks")
        for parts in ({"audio": AUDIO}, {"audio": AUDIO, "efficientat": {}}, {"tdn": {}, "tsn": {}})
    ),
    *(
        ("skeleton-features", {**JOINTS, "network": {**GRAPH, **more}, "also": also}, message)
        for more, also, message in (
            ({"padding": "same"}, (), "only a network with padding 'causal'"),
            ({"persons": 2}, (), "the network takes"),
            ({"channels": 3}, (), "the network takes"),
            ({}, ["bone"], "also bone: not among the streams"),
        )
    ),
    *(
        ("joints", {"layout": "body-15", **options}, "does not take these arguments")
        for options in (
            *({"streams": ["bones"]}, {"streams": []}, {"normalise": "ntu"}),
            *({"missing": "x"}, {"axes": 4}, {"score": "sum"}),
        )
    ),
]


@pytest.mark.parametrize(("name", "arguments", "message"), BAD)
def test_unknown_names_and_arguments_are_refused(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_frontend(name, **arguments)


OUTSIDE = '''
from __future__ import annotations

import torch
from torch import nn

from costream.models.frontend import frontend


@frontend("brightness")
class Brightness(nn.Module):
    """Mean red, green and blue of a frame."""

    takes, token_width, box = "video", 3, (16, 12)

    def prepare(self, rgb):
        return rgb.transpose(2, 0, 1).copy()

    def init_state(self, batch_size: int = 1):
        return None

    def forward_step(self, x, state):
        return x.float().mean((-2, -1))

    def count_macs(self) -> int:
        return 0
'''


@FRONTENDS.temporarily()
def test_one_file_outside_adds_a_frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brightness.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("brightness")
    net: Any = load_frontend("brightness")
    assert type(net) is module.Brightness
    assert net.forward_step(torch.full((1, 3, 2, 2), 7), None).tolist() == [[7.0, 7.0, 7.0]]
    arguments = {"input_width": 3, "num_classes": 2, "embed_dim": 4, "hidden": 4}
    card = Card(
        "bright", "action detection", "miniroad", arguments, ("a", "b"), 5.0, frontend="brightness"
    )
    save_model(tmp_path / "bright.safetensors", card, MiniRoad(**arguments), net)
    model = load_model(str(tmp_path / "bright.safetensors"))
    frame = VideoFrame(0, 0.0, 0, lambda: np.full((12, 16, 3), 7, np.uint8))
    assert model.step([frame], model.init_state()).probabilities is not None


def test_listing_imports_no_torch() -> None:
    code = "import sys; from costream.models.frontend import *; print(*FRONTENDS); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:2] == ["tdn", "tsn"]
