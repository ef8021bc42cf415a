"""Small 3D networks whose every parameter matters, and what they should give, written plainly."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from costream.models.video.video3d.network import VideoNet
from kit.paths import REFS

REFERENCES = REFS / "skeleton"
# name -> arguments; sizes are odd, so that strides leave pixels over
KINDS: dict[str, dict[str, object]] = {
    "x3d": {"widths": (8, 12), "depths": (2, 3), "stem_width": 4, "head": (6, 7)},
    "slow": {"widths": (8, 12, 16, 8), "depths": (1, 1, 2, 1), "stem_width": 4},
    "i3d": {"widths": (8, 12, 16), "depths": (2, 3, 2), "stem_width": 4},
}


def small_net(kind: str, seed: int = 0, size: int = 19, **options: object) -> VideoNet:
    """Return a float64 network of 3 classes in evaluation."""
    torch.manual_seed(seed)
    net = VideoNet(3, kind, size, **{"pool": 3, **KINDS[kind], **options}).double()
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point() and tensor.dim() > 1:
                tensor.normal_(0, tensor[0].numel() ** -0.5)
            elif tensor.is_floating_point():
                tensor.normal_(0.3, 0.4)
    return net.eval()


def video(length: int, batch: int = 1, size: int = 19) -> Tensor:
    """Return clips [B, T, 3, size, size] of noise."""
    return torch.randn(batch, length, 3, size, size, dtype=torch.float64)


def stepped(net: VideoNet, x: Tensor, state: object = None) -> dict[int, Tensor]:
    """Return the logits of each step that has some."""
    state = net.init_state(len(x)) if state is None else state
    given = ((t, net.forward_step(frame, state)) for t, frame in enumerate(x.unbind(1)))
    return {t: out.logits for t, out in given if out is not None}


def plain(net: VideoNet, x: Tensor, same: bool = False) -> Tensor:
    """Return the logits [B, K] of a clip without any padding in time, each frame squeezed alone.

    ``same``: with zeros around the clip, which is squeezed as a whole: the ordinary network.
    Written from the papers with functions of torch alone, on the names of the weights.
    """
    w = {name.removeprefix("encoder."): value for name, value in net.state_dict().items()}
    y = x.transpose(1, 2)
    if "stem.conv_xy.weight" in w:
        y = F.conv3d(y, w["stem.conv_xy.weight"], None, (1, 2, 2), (0, 1, 1))
        sides = (2 if same else 0, 0, 0)
        y = F.conv3d(y, w["stem.conv.weight"], None, 1, sides, groups=y.shape[1])
        y = F.relu(_norm(y, w, "stem.bn"))
    else:
        sides = (w["stem.conv.weight"].shape[2] // 2 if same else 0, 3, 3)
        y = F.conv3d(y, w["stem.conv.weight"], None, (1, 2, 2), sides)
        y = F.max_pool3d(F.relu(_norm(y, w, "stem.bn")), (1, 3, 3), (1, 2, 2), (0, 1, 1))
    blocks = sorted({tuple(map(int, n.split(".")[1:3])) for n in w if n.startswith("stages.")})
    for stage, number in blocks:
        if (stage, number) == (1, 0) and net.encoder.kind == "i3d":
            y = F.max_pool3d(y, (2, 1, 1))
        strided = number == 0 and (stage > 0 or net.encoder.kind == "x3d")
        y = _block(y, w, f"stages.{stage}.{number}", 2 if strided else 1, same)
    if "conv.weight" in w:
        y = F.relu(_norm(F.conv3d(y, w["conv.weight"]), w, "conv_bn"))
    row = y.mean((2, 3, 4))
    row = F.relu(row @ w["linear.weight"].T) if "linear.weight" in w else row
    return row @ w["classifier.weight"].T + w["classifier.bias"]


def _block(x: Tensor, w: Mapping[str, Tensor], at: str, stride: int, same: bool) -> Tensor:
    a, b = w[f"{at}.a.weight"], w[f"{at}.b.weight"]
    kernel, groups = max(a.shape[2], b.shape[2]), len(b) // b.shape[1]
    early, late = (size // 2 if same else 0 for size in (a.shape[2], b.shape[2]))
    y = F.relu(_norm(F.conv3d(x, a, None, 1, (early, 0, 0)), w, f"{at}.a_bn"))
    y = F.conv3d(y, b, None, (1, stride, stride), (late, 1, 1), groups=groups)
    y = _norm(y, w, f"{at}.b_bn")
    if f"{at}.squeeze.fc1.weight" in w:
        means = y.mean((3, 4)).transpose(1, 2)
        means = means.mean(1, keepdim=True) if same else means
        hidden = F.relu(F.linear(means, w[f"{at}.squeeze.fc1.weight"], w[f"{at}.squeeze.fc1.bias"]))
        gate = F.linear(hidden, w[f"{at}.squeeze.fc2.weight"], w[f"{at}.squeeze.fc2.bias"])
        y = y * gate.sigmoid().transpose(1, 2)[..., None, None]
    y = y * y.sigmoid() if groups > 1 else F.relu(y)
    y = _norm(F.conv3d(y, w[f"{at}.c.weight"]), w, f"{at}.c_bn")
    half = 0 if same else kernel // 2
    beside = x[:, :, half : x.shape[2] - half]
    if f"{at}.shortcut.weight" in w:
        beside = F.conv3d(beside, w[f"{at}.shortcut.weight"], None, (1, stride, stride))
        beside = _norm(beside, w, f"{at}.shortcut_bn")
    return F.relu(y + beside)


def _norm(x: Tensor, w: Mapping[str, Tensor], at: str) -> Tensor:
    names = ("running_mean", "running_var", "weight", "bias")
    mean, var, weight, bias = (w[f"{at}.{name}"][:, None, None, None] for name in names)
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def published_keys(name: str) -> dict[str, list[int]]:
    """Return names and shapes of the tensors of a published X3D-S, or names to names."""
    found: dict[str, list[int]] = json.loads((REFERENCES / "keys_x3d_s.json").read_text())[name]
    return found
