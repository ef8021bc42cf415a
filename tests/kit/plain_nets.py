"""Plain networks of other people's kinds, small, as they are trained on clips."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _conv3d(i: int, o: int, k: tuple[int, int, int], s: tuple[int, int, int] = (1, 1, 1)) -> Any:
    pads = tuple((n - 1) // 2 for n in k)
    return nn.Sequential(nn.Conv3d(i, o, k, s, pads, bias=False), nn.BatchNorm3d(o))


class BasicBlock3d(nn.Module):
    """A block of torchvision's video ResNets; ``kind`` of their first and second convolution."""

    def __init__(self, i: int, o: int, kind: str, stride: int) -> None:
        super().__init__()
        convs = []
        for a, b, s in ((i, o, stride), (o, o, 1)):
            if kind == "r3d":
                convs.append(_conv3d(a, b, (3, 3, 3), (s, s, s)))
            elif kind == "2d":
                convs.append(_conv3d(a, b, (1, 3, 3), (1, s, s)))
            else:
                m = (a * b * 27) // (a * 9 + 3 * b)
                flat = _conv3d(a, m, (1, 3, 3), (1, s, s))
                convs.append(nn.Sequential(flat, nn.ReLU(), _conv3d(m, b, (3, 1, 1), (s, 1, 1))))
        self.conv1, self.conv2 = convs
        self.downsample = None
        if stride > 1 or i != o:
            self.downsample = _conv3d(
                i, o, (1, 1, 1), (1 if kind == "2d" else stride, stride, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(F.relu(self.conv1(x)))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class VideoResNet(nn.Module):
    """r3d_18, mc3_18 and r2plus1d_18 of torchvision (Tran et al., 2018)."""

    def __init__(self, kind: str = "r3d", width: int = 64, classes: int = 400) -> None:
        super().__init__()
        if kind == "r2plus1d":
            self.stem = nn.Sequential(
                _conv3d(3, 45, (1, 7, 7), (1, 2, 2)),
                nn.ReLU(),
                _conv3d(45, width, (3, 1, 1)),
                nn.ReLU(),
            )
        else:
            self.stem = nn.Sequential(_conv3d(3, width, (3, 7, 7), (1, 2, 2)), nn.ReLU())
        for k in range(4):
            i, o = width * 2 ** max(0, k - 1), width * 2**k
            inner = "2d" if kind == "mc3" and k else "r3d" if kind == "mc3" else kind
            blocks = (BasicBlock3d(i, o, inner, 1 + (k > 0)), BasicBlock3d(o, o, inner, 1))
            setattr(self, f"layer{k + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool3d((1, 1, 1)), nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))
        return self.fc(self.avgpool(x).flatten(1))


class SeparableInception(nn.Module):
    """S3D (Xie et al., 2018): a stem, two inception blocks, average pooling, a mean of logits."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()

        def separable(i: int, o: int) -> Any:
            return nn.Sequential(
                _conv3d(i, o, (1, 3, 3)), nn.ReLU(), _conv3d(o, o, (3, 1, 1)), nn.ReLU()
            )

        w = width
        self.stem = nn.Sequential(
            _conv3d(3, w, (1, 3, 3), (1, 2, 2)), _conv3d(w, w, (3, 1, 1), (2, 1, 1)), nn.ReLU()
        )
        self.pool = nn.MaxPool3d((3, 3, 3), (2, 2, 2), (1, 1, 1))
        self.branches = nn.ModuleList()
        for i in (w, 4 * w):
            branches: list[nn.Module] = [_conv3d(i, w, (1, 1, 1))]
            branches += [nn.Sequential(_conv3d(i, w, (1, 1, 1)), separable(w, w)) for _ in range(2)]
            pooled = nn.Sequential(nn.MaxPool3d(3, 1, 1), _conv3d(i, w, (1, 1, 1)))
            self.branches.append(nn.ModuleList([*branches, pooled]))
        self.avgpool = nn.AvgPool3d((2, 4, 4), 1)
        self.classifier = nn.Conv3d(4 * w, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        for block in self.branches:
            x = torch.cat([branch(x) for branch in block], dim=1)
        return self.classifier(self.avgpool(x)).mean(dim=(2, 3, 4))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, dims: int) -> None:
        super().__init__()
        conv: Any = nn.Conv3d if dims == 3 else nn.Conv2d
        self.pool: nn.Module = nn.AdaptiveAvgPool3d(1) if dims == 3 else nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = conv(width, width // 2, 1), conv(width // 2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(self.pool(x)))))


class X3dBlock(nn.Module):
    """X3D (Feichtenhofer, 2020): depthwise 3x3x3 between two 1x1x1."""

    def __init__(self, i: int, o: int, excite: bool) -> None:
        super().__init__()
        w = 2 * i
        self.a = nn.Sequential(nn.Conv3d(i, w, 1, bias=False), nn.BatchNorm3d(w), nn.ReLU())
        conv = nn.Conv3d(w, w, 3, (1, 2, 2), 1, groups=w, bias=False)
        self.b = nn.Sequential(
            conv, nn.BatchNorm3d(w), SqueezeExcite(w, 3) if excite else nn.Identity()
        )
        self.c = nn.Sequential(nn.Conv3d(w, o, 1, bias=False), nn.BatchNorm3d(o))
        self.shortcut = nn.Conv3d(i, o, 1, (1, 2, 2), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.c(F.silu(self.b(self.a(x)))) + self.shortcut(x))


class CausalConv3d(nn.Conv3d):
    """MoViNet's stream: padded before the clip only (Kondratyuk et al., 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 0, 0, 0, self.kernel_size[0] - 1, 0)))


class TemporalBlock(nn.Module):
    """TCN (Bai et al., 2018): padded at both ends, the end cut off."""

    def __init__(self, i: int, o: int, dilation: int) -> None:
        super().__init__()
        self.chomp = 2 * dilation
        self.conv1 = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(i, o, 3, padding=self.chomp, dilation=dilation)
        )
        self.conv2 = nn.Conv1d(o, o, 3, padding=self.chomp, dilation=dilation)
        self.down = nn.Conv1d(i, o, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x)[:, :, : -self.chomp].contiguous())
        y = F.relu(self.conv2(y)[:, :, : -self.chomp].contiguous())
        return F.relu(y + self.down(x))


class WaveNet(nn.Module):
    """Gated, dilated, causal convolutions with skips (van den Oord et al., 2016)."""

    def __init__(self, width: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(layers)
        )
        self.out = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.skip = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.end = nn.Conv1d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.enter(x), 0
        for gate, out, skip in zip(self.gates, self.out, self.skip, strict=True):
            a, b = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, dim=1)
            y = torch.tanh(a) * torch.sigmoid(b)
            skips = skip(y) + skips
            x = x + out(y)
        return self.end(F.relu(skips))


class PlainStgcn(nn.Module):
    """ST-GCN (Yan et al., 2018): persons in the batch, graph products, kernels of 9 frames."""

    def __init__(self, joints: int = 5, width: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.register_buffer("graph", torch.rand(3, joints, joints))
        self.data_bn = nn.BatchNorm1d(3 * joints)
        sizes = ((3, width, 1), (width, width, 1), (width, 2 * width, 2))
        self.mix = nn.ModuleList(nn.Conv2d(i, 3 * o, 1) for i, o, _ in sizes)
        self.time = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, (9, 1), (s, 1), (4, 0)))
            for _, o, s in sizes
        )
        self.residual = nn.ModuleList(nn.Conv2d(i, o, 1, (s, 1)) for i, o, s in sizes)
        self.fc = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:  # [N, C, T, V, M]
        n, c, t, v, m = x.size()
        x = x.permute(0, 4, 3, 1, 2).contiguous().view(n * m, v * c, t)
        x = self.data_bn(x).view(n, m, v, c, t).permute(0, 1, 3, 4, 2).contiguous()
        x = x.view(n * m, c, t, v)
        for mix, time, residual in zip(self.mix, self.time, self.residual, strict=True):
            y = mix(x)
            y = y.view(y.size(0), 3, y.size(1) // 3, y.size(2), y.size(3))
            y = torch.einsum("nkctv,kvw->nctw", y, self.graph)
            x = F.relu(time(y) + residual(x))
        x = F.avg_pool2d(x, (1, v))
        x = x.view(n, m, x.size(1), x.size(2), 1).mean(dim=1)
        return self.fc(x.mean(dim=2, keepdim=True)).view(n, -1)


class MelEfficientNet(nn.Module):
    """EfficientNet's blocks over mel bands and time (Tan, Le, 2019), [B, 1, F, T]."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        w = width
        self.stem = nn.Sequential(
            nn.Conv2d(1, w, 3, 2, 1, bias=False), nn.BatchNorm2d(w), nn.SiLU()
        )
        self.expand = nn.Sequential(
            nn.Conv2d(w, 2 * w, 1, bias=False), nn.BatchNorm2d(2 * w), nn.SiLU()
        )
        self.depthwise = nn.Conv2d(2 * w, 2 * w, 5, 1, 2, groups=2 * w)
        self.excite, self.project = SqueezeExcite(2 * w, 2), nn.Conv2d(2 * w, w, 1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(w, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(self.excite(F.silu(self.depthwise(self.expand(x)))))
        return self.head(torch.flatten(self.pool(x), 1))


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, a convolution, half a feed-forward (Gulati et al., 2020)."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.ff1, self.ff2 = (
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
            for _ in range(2)
        )
        self.norm, self.attention = nn.LayerNorm(d), nn.MultiheadAttention(d, 2, batch_first=True)
        self.before, self.expand = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1)
        self.depthwise, self.bn = nn.Conv1d(d, d, 7, padding=3, groups=d), nn.BatchNorm1d(d)
        self.project, self.last = nn.Conv1d(d, d, 1), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, d]
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y)[0]
        y = F.glu(self.expand(self.before(x).transpose(1, 2)), dim=1)
        x = x + self.project(F.silu(self.bn(self.depthwise(y)))).transpose(1, 2)
        return self.last(x + 0.5 * self.ff2(x))


class SelfAttention(nn.Module):
    """A layer with ``F.scaled_dot_product_attention``, by hand if ``plain``."""

    def __init__(self, d: int = 8, heads: int = 2, plain: bool = False) -> None:
        super().__init__()
        self.heads, self.plain = heads, plain
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, d]
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.plain:
            y = torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class FrameThenTime(nn.Module):
    """A picture network on every frame, frames in the batch, then a GRU; the newest of its rows."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.frame = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.gru, self.fc = nn.GRU(width, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, 3, H, W]
        b, t = x.shape[:2]
        y = self.frame(x.flatten(0, 1)).view(b, t, -1)
        return self.fc(self.gru(y)[0][:, -1])


class ShiftedWindows(nn.Module):
    """The windows of a video Swin transformer, which hold frames of several times."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T, H, W]
        b, c, t, h, w = x.shape
        x = x.view(b, c, t // 2, 2, h // 2, 2, w // 2, 2).permute(0, 2, 4, 6, 3, 5, 7, 1)
        return torch.softmax(x.reshape(-1, 8, c), 1)
