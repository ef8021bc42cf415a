"""Conformance of every registered frontend to the protocol in ``frontends/base.py``."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from costream.errors import ModelError
from costream.frontends.base import FRONTENDS, frontend_class, load_frontend
from costream.nn.state import State
from kit.paths import ROOT
from kit.tsn_nets import SMALL as SMALL_TSN

TDN = {"box": (32, 24), "lags": (1, 3), "widths": (8, 8, 8, 8)}
AUDIO = {"token_width": 16, "widths": (4,) * 7, "feature_width": 8}
X3D = {"size": 19, "short_side": 24, "widths": (8, 12), "depths": (1, 2), "stem_width": 4}
# name -> arguments of a small one, and the shape of an item as ``forward_step`` takes it
SMALL: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "tdn": (TDN, (3, 24, 32)),
    "tsn": (SMALL_TSN, (13, 32, 32)),
    "crop": ({"size": 16, "short_side": 20}, (3, 16, 16)),
    "cox3d": ({**X3D, "head": (6, 10), "pool": 4}, (3, 19, 19)),
    "joints": ({"layout": "body-15"}, (2, 15, 4)),
    "audio": (AUDIO, (4000,)),
    "audiovisual": ({"video_arguments": TDN, "audio_arguments": AUDIO}, (3, 24, 32)),
    "vggish": ({"widths": (2,) * 6, "hidden": 8, "width": 8}, (4000,)),
}
GATED = {"pixels", "crops"}  # of token-gated models: no state
EVERY = pytest.mark.parametrize("name", sorted(SMALL))
STEPS = 9


def small(name: str) -> Any:
    torch.manual_seed(0)
    return load_frontend(name, **SMALL[name][0]).eval().requires_grad_(False)


def streams(name: str, batch: int, steps: int = STEPS) -> Tensor:
    """Return made-up items [steps, batch, ...] of a frontend."""
    shape, generator = SMALL[name][1], torch.Generator().manual_seed(batch)
    if frontend_class(name).takes == "video":  # type: ignore[attr-defined]
        size = (steps, batch, *shape)
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    return torch.randn(steps, batch, *shape, generator=generator) / 4


def test_every_registered_frontend_is_tested() -> None:
    assert set(SMALL) | GATED == set(FRONTENDS)


@pytest.mark.parametrize("name", list(FRONTENDS))
def test_declares_what_it_takes(name: str) -> None:
    kind = frontend_class(name)
    assert kind.takes in ("video", "skeleton", "audio")  # type: ignore[attr-defined]
    assert callable(getattr(kind, "count_macs", None))
    assert hasattr(kind, "forward" if name in GATED else "forward_step")


@EVERY
def test_one_token_a_step_of_its_width(name: str) -> None:
    net, items = small(name), streams(name, 2)
    state = net.init_state(2)
    for item in items:
        token = net.forward_step(item, state)
        if name in ("joints", "crop"):  # what a network of skeletons or of volumes takes
            assert token.shape[0] == 2
        else:
            assert token.shape == (2, net.token_width)
        assert torch.isfinite(token).all()
    assert isinstance(net.count_macs(), int)


@EVERY
def test_a_stream_of_a_batch_gets_what_it_would_alone(name: str) -> None:
    net, items = small(name).double(), streams(name, 3)
    items = items if items.dtype is torch.uint8 else items.double()
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
    items = items if items.dtype is torch.uint8 else items.double()
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
    state.reset([1])
    fresh, row = net.init_state(2), items[0]
    torch.testing.assert_close(net.forward_step(row, state)[1], net.forward_step(row, fresh)[1])


def test_unknown_names_and_arguments_are_refused() -> None:
    with pytest.raises(ModelError, match="unknown frontend 'retina'"):
        load_frontend("retina")
    with pytest.raises(ModelError, match="frontend 'tdn' does not take these arguments"):
        load_frontend("tdn", colour="red")


OUTSIDE = '''
from __future__ import annotations

import torch
from torch import nn

from costream.frontends.base import frontend


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


def test_one_file_outside_adds_a_frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brightness.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(FRONTENDS, "_added", dict(FRONTENDS._added))
    module = import_module("brightness")
    net: Any = load_frontend("brightness")
    assert type(net) is module.Brightness
    assert net.forward_step(torch.full((1, 3, 2, 2), 7), None).tolist() == [[7.0, 7.0, 7.0]]


def test_listing_imports_no_torch() -> None:
    code = "import sys; from costream.frontends.base import *; print(*FRONTENDS); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:2] == ["tdn", "tsn"]
