"""Skeleton networks as others write them, with random weights: checkpoints and their arithmetic.

Each dialect is written out with its own names and in the order of its own code: channels first,
convolutions as convolutions. The importers are tested against this.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

JOINTS, CHANNELS, KERNEL, CLASSES = 18, 3, 9, 7
WIDTHS, STRIDES = (6, 6, 14, 14), (1, 1, 2, 1)


class Parts:
    """Draws the weights of layers, and applies them."""

    def __init__(self) -> None:
        self.w: dict[str, Tensor] = {}

    def draw_conv(self, name: str, *shape: int) -> None:
        self.w[f"{name}.weight"] = torch.randn(*shape) / torch.tensor(shape[1:]).prod() ** 0.5
        self.w[f"{name}.bias"] = 0.3 * torch.randn(shape[0])

    def draw_norm(self, name: str, width: int) -> None:
        self.w[f"{name}.weight"] = torch.rand(width) + 0.5
        self.w[f"{name}.bias"] = 0.3 * torch.randn(width)
        self.w[f"{name}.running_mean"] = 0.3 * torch.randn(width)
        self.w[f"{name}.running_var"] = torch.rand(width) + 0.5
        self.w[f"{name}.num_batches_tracked"] = torch.tensor(11)

    def conv(
        self, x: Tensor, name: str, stride: int = 1, padding: int = 0, dilation: int = 1
    ) -> Tensor:
        weight, bias = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        return F.conv2d(x, weight, bias, (stride, 1), (padding, 0), (dilation, 1))

    def norm(self, x: Tensor, name: str) -> Tensor:
        parts = (self.get(f"{name}.{p}") for p in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts)

    def get(self, name: str) -> Tensor:
        return self.w[name].double()

    def add(self, y: Tensor, x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        """Add the input of a block, projected if it has weights for that, and rectify."""
        if f"{conv}.weight" in self.w:
            x = self.norm(self.conv(x, conv, stride), norm)
        return F.relu(y + x)

    def by_person(self, clip: Tensor, name: str) -> Tensor:
        """Normalise a clip [T, M, V, C], all persons alike; give [M, C, T, V]."""
        t, m, v, c = clip.shape
        x = self.norm(clip.permute(1, 2, 3, 0).reshape(m, v * c, t), name)
        return x.reshape(m, v, c, t).permute(0, 2, 3, 1)

    def stacked(self, x: Tensor, name: str, graph: Tensor) -> Tensor:
        """One convolution for the three subsets, then the mixing of the joints."""
        y = self.conv(x, name)
        y = y.view(len(y), 3, -1, *y.shape[2:])
        return torch.einsum("nkctv,kvw->nctw", y, graph)


class StGcn(Parts):
    """The original ST-GCN."""

    def __init__(self) -> None:
        super().__init__()
        self.w["A"] = torch.rand(3, JOINTS, JOINTS) / JOINTS
        self.draw_norm("data_bn", JOINTS * CHANNELS)
        width = CHANNELS
        for i, (out, stride) in enumerate(zip(WIDTHS, STRIDES, strict=True)):
            at = f"st_gcn_networks.{i}"
            self.w[f"edge_importance.{i}"] = 1 + 0.3 * torch.randn(3, JOINTS, JOINTS)
            self.draw_conv(f"{at}.gcn.conv", 3 * out, width, 1, 1)
            self.draw_norm(f"{at}.tcn.0", out)
            self.draw_conv(f"{at}.tcn.2", out, out, KERNEL, 1)
            self.draw_norm(f"{at}.tcn.3", out)
            if i > 0 and (out != width or stride != 1):
                self.draw_conv(f"{at}.residual.0", out, width, 1, 1)
                self.draw_norm(f"{at}.residual.1", out)
            width = out
        self.draw_conv("fcn", CLASSES, width, 1, 1)

    def features(self, clip: Tensor) -> Tensor:
        """What the last block gives, [M, C, T', V], for a clip [T, M, V, C] in float64."""
        x = self.by_person(clip, "data_bn")
        for i, stride in enumerate(STRIDES):
            at = f"st_gcn_networks.{i}"
            graph = self.get("A") * self.get(f"edge_importance.{i}")
            y = F.relu(self.norm(self.stacked(x, f"{at}.gcn.conv", graph), f"{at}.tcn.0"))
            y = self.norm(self.conv(y, f"{at}.tcn.2", stride, KERNEL // 2), f"{at}.tcn.3")
            names = (f"{at}.residual.0", f"{at}.residual.1")
            x = self.add(y, x, *names, stride) if i else F.relu(y)
        return x

    def classify(self, features: Tensor) -> Tensor:
        """Logits of features."""
        x = features.mean((2, 3), keepdim=True).mean(0, keepdim=True)
        return self.conv(x, "fcn").flatten()


class Pyskl(Parts):
    """pyskl's ST-GCN, or with ``plus`` its ST-GCN++."""

    def __init__(self, plus: bool) -> None:
        super().__init__()
        self.plus = plus
        self.draw_norm("backbone.data_bn", JOINTS * CHANNELS)
        width = CHANNELS
        for i, (out, stride) in enumerate(zip(WIDTHS, STRIDES, strict=True)):
            at = f"backbone.gcn.{i}"
            self.w[f"{at}.gcn.A"] = torch.randn(3, JOINTS, JOINTS) / JOINTS**0.5
            if not plus:
                self.w[f"{at}.gcn.PA"] = 1 + 0.3 * torch.randn(3, JOINTS, JOINTS)
            self.draw_norm(f"{at}.gcn.bn", out)
            self.draw_conv(f"{at}.gcn.conv", 3 * out, width, 1, 1)
            if plus and out != width:
                self.draw_conv(f"{at}.gcn.down.0", out, width, 1, 1)
                self.draw_norm(f"{at}.gcn.down.1", out)
            if plus:
                self._draw_branches(f"{at}.tcn", out)
            else:
                self.draw_conv(f"{at}.tcn.conv", out, out, KERNEL, 1)
            self.draw_norm(f"{at}.tcn.bn", out)
            if i > 0 and (out != width or stride != 1):
                self.draw_conv(f"{at}.residual.conv", out, width, 1, 1)
                self.draw_norm(f"{at}.residual.bn", out)
            width = out
        self.w["cls_head.fc_cls.weight"] = torch.randn(CLASSES, width) / width**0.5
        self.w["cls_head.fc_cls.bias"] = 0.3 * torch.randn(CLASSES)

    def _draw_branches(self, at: str, out: int) -> None:
        for i in range(6):
            width = out - out // 6 * 5 if i == 0 else out // 6
            if i == 5:
                self.draw_conv(f"{at}.branches.5", width, out, 1, 1)
                break
            self.draw_conv(f"{at}.branches.{i}.0", width, out, 1, 1)
            self.draw_norm(f"{at}.branches.{i}.1", width)
            if i < 4:
                self.draw_conv(f"{at}.branches.{i}.3.conv", width, width, 3, 1)
        self.draw_norm(f"{at}.transform.0", out)
        self.draw_conv(f"{at}.transform.2", out, out, 1, 1)

    def features(self, clip: Tensor) -> Tensor:
        """What the last block gives, [M, C, T', V], for a clip [T, M, V, C] in float64."""
        x = self.by_person(clip, "backbone.data_bn")
        for i, stride in enumerate(STRIDES):
            at = f"backbone.gcn.{i}"
            y = self._temporal(self._spatial(x, f"{at}.gcn"), f"{at}.tcn", stride)
            names = (f"{at}.residual.conv", f"{at}.residual.bn")
            x = self.add(y, x, *names, stride) if i else F.relu(y)
        return x

    def _spatial(self, x: Tensor, at: str) -> Tensor:
        graph = self.get(f"{at}.A")
        if not self.plus:
            return F.relu(
                self.norm(self.stacked(x, f"{at}.conv", graph * self.get(f"{at}.PA")), f"{at}.bn")
            )
        y = self.norm(self.stacked(x, f"{at}.conv", graph), f"{at}.bn")
        return self.add(y, x, f"{at}.down.0", f"{at}.down.1")

    def _temporal(self, x: Tensor, at: str, stride: int) -> Tensor:
        if not self.plus:
            return self.norm(self.conv(x, f"{at}.conv", stride, KERNEL // 2), f"{at}.bn")
        outs = []
        for i in range(5):
            y = self.conv(x, f"{at}.branches.{i}.0")
            y = F.relu(self.norm(y, f"{at}.branches.{i}.1"))
            if i < 4:
                y = self.conv(y, f"{at}.branches.{i}.3.conv", stride, i + 1, i + 1)
            else:
                y = F.max_pool2d(y, (3, 1), (stride, 1), (1, 0))
            outs.append(y)
        outs.append(self.conv(x, f"{at}.branches.5", stride))
        y = F.relu(self.norm(torch.cat(outs, 1), f"{at}.transform.0"))
        return self.norm(self.conv(y, f"{at}.transform.2"), f"{at}.bn")

    def classify(self, features: Tensor) -> Tensor:
        """Logits of features."""
        pooled = features.mean((2, 3)).mean(0)
        return F.linear(
            pooled, self.get("cls_head.fc_cls.weight"), self.get("cls_head.fc_cls.bias")
        )


class ContinualSkeletons(Parts):
    """ST-GCN, or with ``attention`` S-TR, of continual-skeletons; NTU layout, two persons."""

    joints, persons = 25, 2

    def __init__(self, attention: bool, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        self.widths = (6, 6, 6, 32, 64, 64) if attention else widths
        self.strides = (1, 1, 1, 2, 2, 1) if attention else STRIDES
        self.attention = attention
        self.draw_norm("data_bn", self.persons * self.joints * CHANNELS)
        width = CHANNELS
        for i, (out, stride) in enumerate(zip(self.widths, self.strides, strict=True)):
            at = f"layers.layer{i + 1}"
            self.w[f"{at}.gcn.A"] = torch.rand(3, self.joints, self.joints) / self.joints
            if attention and i >= 3:
                self.draw_norm(f"{at}.gcn.data_bn", width * self.joints)
                self.draw_conv(f"{at}.gcn.attention_conv.qkv_conv", out + out // 2, width, 1, 1)
                self.draw_conv(f"{at}.gcn.attention_conv.attn_out", out, out, 1, 1)
            else:
                self._draw_graph(f"{at}.gcn", width, out)
            self.draw_norm(f"{at}.gcn.bn", out)
            self.draw_conv(f"{at}.tcn.t_conv", out, out, KERNEL, 1)
            self.draw_norm(f"{at}.tcn.bn", out)
            if i > 0 and (out != width or stride != 1):
                self.draw_conv(f"{at}.residual.t_conv", out, width, 1, 1)
                self.draw_norm(f"{at}.residual.bn", out)
            width = out
        self.w["fc.weight"] = torch.randn(CLASSES, width) / width**0.5
        self.w["fc.bias"] = 0.3 * torch.randn(CLASSES)

    def _draw_graph(self, at: str, width: int, out: int) -> None:
        self.w[f"{at}.graph_attn"] = 1 + 0.3 * torch.randn(3, self.joints, self.joints)
        for k in range(3):
            self.draw_conv(f"{at}.g_conv.{k}", out, width, 1, 1)
        if out != width:
            self.draw_conv(f"{at}.gcn_residual.0", out, width, 1, 1)
            self.draw_norm(f"{at}.gcn_residual.1", out)

    def continual(self) -> dict[str, Tensor]:
        """The weights under the names of the continual form."""
        names = {}
        for name in self.w:
            block, _, rest = name.partition(".gcn.")
            block, at, rest = (block, ".gcn.", rest) if rest else name.partition(".tcn.")
            if ".residual." in name:
                names[name] = name.replace(".residual.", ".0.0.residual.")
            elif rest and not block.endswith("layer1"):
                names[name] = f"{block}.0.1{at}{rest}"
            else:
                names[name] = name
        return {names[name]: value for name, value in self.w.items()}

    def run(self, clip: Tensor, padding: str) -> Tensor:
        """Logits of a clip [T, M, V, C] in float64; ``padding``: "same", or "none" at stride 1."""
        t, m, v, c = clip.shape
        x = self.norm(clip.reshape(t, m * v * c).T[None], "data_bn")
        x = x.reshape(m, v, c, t).permute(0, 2, 3, 1)
        cut = KERNEL // 2 if padding == "none" else 0
        for i in range(len(self.widths)):
            at, stride = f"layers.layer{i + 1}", 1 if cut else self.strides[i]
            attends = self.attention and i >= 3
            y = self._attend(x, f"{at}.gcn") if attends else self._spread(x, f"{at}.gcn")
            y = self.norm(
                self.conv(y, f"{at}.tcn.t_conv", stride, KERNEL // 2 - cut), f"{at}.tcn.bn"
            )
            x = x[:, :, cut : x.shape[2] - cut]
            names = (f"{at}.residual.t_conv", f"{at}.residual.bn")
            x = self.add(y, x, *names, stride) if i else F.relu(y)
        return F.linear(x.mean((2, 3)).mean(0), self.get("fc.weight"), self.get("fc.bias"))

    def _spread(self, x: Tensor, at: str) -> Tensor:
        graph = self.get(f"{at}.A") * self.get(f"{at}.graph_attn")
        y = sum(self.conv(x @ graph[k], f"{at}.g_conv.{k}") for k in range(3))
        y = self.norm(y, f"{at}.bn")
        return self.add(y, x, f"{at}.gcn_residual.0", f"{at}.gcn_residual.1")

    def _attend(self, x: Tensor, at: str) -> Tensor:
        m, c, t, v = x.shape
        rows = x.permute(0, 2, 1, 3).reshape(m * t, c * v)
        frames = self.norm(rows, f"{at}.data_bn").view(m * t, c, v, 1).transpose(2, 3)
        y = self.conv(frames, f"{at}.attention_conv.qkv_conv")
        out = self.w[f"{at}.bn.weight"].numel()
        heads = (p.view(m * t, 8, -1, v) for p in y.split((out // 4, out // 4, out), 1))
        q, k, values = heads
        weights = torch.softmax((q * (out / 32) ** -0.5).mT @ k, -1)  # [N, 8, V, V]
        mixed = (values @ weights.mT).reshape(m * t, out, 1, v)
        y = self.conv(mixed, f"{at}.attention_conv.attn_out")
        y = y.view(m, t, out, v).transpose(1, 2)
        return F.relu(self.norm(y + x if out == c else y, f"{at}.bn"))


def two_stream_agcn() -> dict[str, Tensor]:
    """Draw a 2s-AGCN of 25 joints; the fixed part of its graph is not stored."""
    theirs = ContinualSkeletons(attention=False, widths=(8, 8, 16, 16))
    width = CHANNELS
    for i, out in enumerate(theirs.widths):
        for name in (f"{kind}.{k}" for kind in ("a_conv", "b_conv") for k in range(3)):
            theirs.draw_conv(f"layers.layer{i + 1}.gcn.{name}", out // 4, width, 1, 1)
        width = out
    names = (
        *(("gcn.graph_attn", "gcn1.PA"), ("gcn_residual.", "down.")),
        *((f"{ours}_conv.", f"conv_{theirs}.") for ours, theirs in zip("gab", "dab", strict=True)),
        *((".gcn.", ".gcn1."), (".tcn.t_conv.", ".tcn1.conv."), (".tcn.", ".tcn1.")),
        *(("residual.t_conv.", "residual.conv."), ("layers.layer", "l")),
    )
    renamed = {}
    for name, value in theirs.w.items():
        for ours, other in names:
            name = name.replace(ours, other)
        if not name.endswith(".gcn1.A"):
            renamed[name] = value
    return renamed
