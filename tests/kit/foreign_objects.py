"""NanoDet-Plus as its training has it: the published names, batch norms apart, blue first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STAGES, WIDTH, CLASSES = ((8, 2), (12, 3), (16, 2)), 8, 5


def _conv(i: int, o: int, side: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, side, stride, side // 2, groups=groups, bias=False)


def _act() -> nn.LeakyReLU:
    return nn.LeakyReLU(0.1)


class _Unit(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        half = o // 2
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                *(_conv(i, i, 3, 2, i), nn.BatchNorm2d(i)),
                *(_conv(i, half, 1), nn.BatchNorm2d(half), _act()),
            )
        self.branch2 = nn.Sequential(
            *(_conv(i if stride > 1 else half, half, 1), nn.BatchNorm2d(half), _act()),
            *(_conv(half, half, 3, stride, half), nn.BatchNorm2d(half)),
            *(_conv(half, half, 1), nn.BatchNorm2d(half), _act()),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, taken = (self.branch1(x), x) if len(self.branch1) else x.chunk(2, 1)
        y = torch.stack([kept, self.branch2(taken)], 2)
        return y.flatten(1, 2)


class _Normed(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.conv, self.bn = _conv(i, o, 1), nn.BatchNorm2d(o)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.bn(self.conv(x)), 0.1)


class _Separable(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = _conv(width, width, 5, stride, width)
        self.pointwise = _conv(width, width, 1)
        self.dwnorm, self.pwnorm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.dwnorm(self.depthwise(x)), 0.1)
        return F.leaky_relu(self.pwnorm(self.pointwise(x)), 0.1)


class _Ghost(nn.Module):
    def __init__(self, i: int, o: int, active: bool) -> None:
        super().__init__()
        half = o // 2
        end = [_act()] if active else []
        self.primary_conv = nn.Sequential(_conv(i, half, 1), nn.BatchNorm2d(half), *end)
        cheap = _conv(half, half, 3, groups=half)
        self.cheap_operation = nn.Sequential(cheap, nn.BatchNorm2d(half), *end)

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary_conv(x)
        return torch.cat([x, self.cheap_operation(x)], 1)


class _Bottleneck(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.ghost1, self.ghost2 = _Ghost(i, o, True), _Ghost(o, o, False)
        self.shortcut = nn.Sequential(
            *(_conv(i, i, 5, groups=i), nn.BatchNorm2d(i), _conv(i, o, 1), nn.BatchNorm2d(o))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.ghost2(self.ghost1(x)) + self.shortcut(x)


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(_Bottleneck(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class _Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(_conv(3, 24, 3, 2), nn.BatchNorm2d(24), _act())
        channels = 24
        for k, (wide, units) in enumerate(STAGES):
            rest = [_Unit(wide, wide, 1) for _ in range(units - 1)]
            setattr(self, f"stage{k + 2}", nn.Sequential(_Unit(channels, wide, 2), *rest))
            channels = wide

    def forward(self, x: Tensor) -> list[Tensor]:
        x, maps = F.max_pool2d(self.conv1(x), 3, 2, 1), []
        for k in range(len(STAGES)):
            x = getattr(self, f"stage{k + 2}")(x)
            maps.append(x)
        return maps


class _Exchange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce_layers = nn.ModuleList(_Normed(wide, WIDTH) for wide, _ in STAGES)
        self.top_down_blocks = nn.ModuleList(_Blocks() for _ in range(2))
        self.downsamples = nn.ModuleList(_Separable(WIDTH, 2) for _ in range(2))
        self.bottom_up_blocks = nn.ModuleList(_Blocks() for _ in range(2))
        self.extra_lvl_in_conv = nn.ModuleList([_Separable(WIDTH, 2)])
        self.extra_lvl_out_conv = nn.ModuleList([_Separable(WIDTH, 2)])

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        fine, middle, coarse = (f(x) for f, x in zip(self.reduce_layers, maps, strict=True))
        large = F.interpolate(coarse, scale_factor=2, mode="bilinear")
        middle = self.top_down_blocks[0](torch.cat([large, middle], 1))
        large = F.interpolate(middle, scale_factor=2, mode="bilinear")
        out = [self.top_down_blocks[1](torch.cat([large, fine], 1))]
        for k, x in enumerate((middle, coarse)):
            small = self.downsamples[k](out[-1])
            out.append(self.bottom_up_blocks[k](torch.cat([small, x], 1)))
        return [*out, self.extra_lvl_in_conv[0](coarse) + self.extra_lvl_out_conv[0](out[-1])]


class _Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        pairs = (nn.ModuleList(_Separable(WIDTH) for _ in range(2)) for _ in range(4))
        self.cls_convs = nn.ModuleList(pairs)
        self.gfl_cls = nn.ModuleList(nn.Conv2d(WIDTH, CLASSES + 32, 1) for _ in range(4))
        self.register_buffer("project", torch.linspace(0, 7, 8))

    def forward(self, maps: list[Tensor]) -> Tensor:
        rows = []
        for x, (first, second), last in zip(maps, self.cls_convs, self.gfl_cls, strict=True):
            rows.append(last(second(first(x))).flatten(2))
        return torch.cat(rows, 2).transpose(1, 2)


class NanoDetModules(nn.Module):
    """The network in training, with made-up weights and norms: pictures, blue first, to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.fpn, self.head = _Backbone(), _Exchange(), _Head()
        made = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, value in self.state_dict().items():
                if value.dim() == 4:
                    value.normal_(0, (2 / value[0].numel()) ** 0.5, generator=made)
                elif value.is_floating_point() and not name.endswith("project"):
                    base = float(name.endswith(("running_var", "weight")))
                    value.copy_(base + 0.2 * torch.rand(value.shape, generator=made))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fpn(self.backbone(x)))
