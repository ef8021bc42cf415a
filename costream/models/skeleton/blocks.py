"""Blocks of skeleton networks for whole clips, with gradients: space, time and a residual.

Parameter names are those of continual-skeletons; below ``tcn.`` of branches, those of pyskl.
Features come last: x [N, T, V, C] holds T frames of N persons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.graph import normalise
from costream.nn.pooling import TemporalMean, TemporalStatistics
from costream.nn.timing import ContinualModule, Timing, in_parallel, kernel_timing

PADDINGS = ("same", "none", "causal")
DILATIONS = (1, 2, 3, 4)  # of the branches of ST-GCN++, with kernel 3
Spatial: TypeAlias = Callable[[int, int], nn.Module]  # (C, O) -> the spatial unit


def sides(padding: str, kernel: int, dilation: int = 1) -> tuple[int, int]:
    """Return the zeros before and after a clip for a kernel over time.

    ``padding``: "same", "none", or "causal": no output depends on later frames.
    """
    reach = (kernel - 1) * dilation
    return {"same": (reach // 2, reach // 2), "none": (0, 0), "causal": (reach, 0)}[padding]


class TemporalUnit(nn.Module):
    """``BN(convolution over time)``, no ReLU. With kernel 1 it projects a residual."""

    def __init__(
        self, in_width: int, out_width: int, kernel: int, stride: int, padding: str
    ) -> None:
        super().__init__()
        self.stride, self.pads = stride, sides(padding, kernel)
        self.t_conv = nn.Conv2d(in_width, out_width, (kernel, 1))
        self.bn = nn.BatchNorm2d(out_width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T', V, O] for a clip ``x`` [N, T, V, C]."""
        return normalise(self.bn, convolve(self.t_conv, x, self.stride, self.pads))

    def count_macs(self) -> tuple[int, int]:
        """Return the multiply-accumulates per joint of an input frame, and of an output frame."""
        return 0, self.t_conv.weight.numel()


class BranchedTemporalUnit(nn.Module):
    """ST-GCN++'s temporal unit: branches of dilated convolutions, a maximum and the input.

    Duan et al., "PYSKL" (ACM MM 2022). Each of the first five branches has a 1x1 convolution,
    BN and ReLU, then a convolution over 3 frames with dilation 1, 2, 3, 4, or the maximum of 3;
    the last one has the 1x1 convolution alone. BN, ReLU, a 1x1 convolution and BN follow on
    the concatenated branches.
    """

    def __init__(self, width: int, stride: int, padding: str) -> None:
        super().__init__()
        if padding == "none":
            raise ValueError("temporal branches need padding same or causal")
        count = len(DILATIONS) + 2
        self.width, self.stride, self.padding = width, stride, padding
        part = width // count
        self.widths = (width - (count - 1) * part, *[part] * (count - 1))
        branches: list[nn.Module] = []
        for narrow, dilation in zip(self.widths, DILATIONS, strict=False):
            conv = nn.Conv2d(narrow, narrow, (3, 1), dilation=(dilation, 1))
            branches.append(nn.Sequential(*_reduce(width, narrow), nn.ModuleDict({"conv": conv})))
        branches.append(nn.Sequential(*_reduce(width, part)))
        branches.append(nn.Conv2d(width, part, 1))
        self.branches = nn.ModuleList(branches)
        self.transform = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.bn = nn.BatchNorm2d(width)

    def resize(self) -> None:
        """Take the widths from the weights."""
        *reduced, last = self.branches
        parts = [len(branch[0].weight) for branch in reduced]  # type: ignore[index]
        self.widths = (*parts, len(cast(nn.Conv2d, last).weight))
        self.width = cast(nn.Conv2d, last).weight.shape[1]

    @property
    def kernels(self) -> list[nn.Conv2d]:
        """The dilated convolutions."""
        units = [cast(nn.Sequential, b)[3] for b in list(self.branches)[: len(DILATIONS)]]
        return [cast(nn.Conv2d, cast(nn.ModuleDict, unit)["conv"]) for unit in units]

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T', V, O] for a clip ``x`` [N, T, V, O]."""
        *reduced, last = self.branches
        rows = [F.relu(normalise(b[1], convolve(b[0], x))) for b in reduced]  # type: ignore[index]
        parts = [
            convolve(conv, row, self.stride, sides(self.padding, 3, dilation))
            for conv, row, dilation in zip(self.kernels, rows, DILATIONS, strict=False)
        ]
        # Zero padding does not change the maximum of ReLU outputs.
        images = F.pad(rows[-1], (0, 0, 0, 0, *sides(self.padding, 3))).permute(0, 3, 1, 2)
        maxima = F.max_pool2d(images, (3, 1), (self.stride, 1)).permute(0, 2, 3, 1)
        parts += [maxima, convolve(cast(nn.Conv2d, last), x, self.stride)]
        joined = cast(Tensor, self.transform(torch.cat(parts, 3).permute(0, 3, 1, 2)))
        return cast(Tensor, self.bn(joined)).permute(0, 2, 3, 1)

    def count_macs(self) -> tuple[int, int]:
        """Return the multiply-accumulates per joint of an input frame, and of an output frame."""
        kernels = sum(conv.weight.numel() for conv in self.kernels)
        joined = sum(self.widths)
        last = self.width * self.widths[-1]  # the branch without a kernel
        out = len(cast(nn.Conv2d, self.transform[2]).weight)
        return self.width * joined - last, joined * out + last + kernels


def _reduce(in_width: int, out_width: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(in_width, out_width, 1), nn.BatchNorm2d(out_width), nn.ReLU()


def convolve(conv: nn.Conv2d, x: Tensor, stride: int = 1, pads: tuple[int, int] = (0, 0)) -> Tensor:
    """Return a convolution over time [N, T', V, O] of a clip ``x`` [N, T, V, C]."""
    if conv.kernel_size == (1, 1):
        # A matrix product, because oneDNN's AVX2 kernel for the gradient of a strided convolution
        # of size 1 over fewer than 8 channels writes past its buffer (torch 2.13, one thread).
        return F.linear(x[:, ::stride], conv.weight.flatten(1), conv.bias)
    # For torch, features last is the memory format "channels_last" of images of T x V.
    images, steps = x.permute(0, 3, 1, 2), (stride, 1)
    if pads[0] != pads[1]:
        images, pads = F.pad(images, (0, 0, *pads)), (0, 0)
    y = F.conv2d(images, conv.weight, conv.bias, steps, (pads[0], 0), conv.dilation)
    return y.permute(0, 2, 3, 1)


class SkeletonBlock(ContinualModule):
    """``relu(tcn(gcn(x)) + residual(x))``.

    Args:
        in_width, out_width: C, O. ``spatial``: creates the spatial unit ``gcn``.
        kernel, stride: of time. ``padding``: "same", "none" or "causal". The residual is the
            frame that the kernel is centred on, or with "causal" the newest.
        residual: whether there is one. It is convolved if widths differ or there is a stride.
        branched: use the temporal unit of ST-GCN++. ``dropout``: after it, in training.
    """

    def __init__(  # noqa: PLR0913 - the sizes of the network
        self,
        in_width: int,
        out_width: int,
        spatial: Spatial,
        *,
        kernel: int = 9,
        stride: int = 1,
        padding: str = "same",
        residual: bool = True,
        branched: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if branched:
            kernel = 2 * max(DILATIONS) + 1
        self.in_width, self.out_width, self.kernel = in_width, out_width, kernel
        self.dropout, self.form = dropout, padding
        self.timing: Timing = kernel_timing(kernel, stride, 1, sides(padding, kernel))[0]
        if residual:
            self.timing = in_parallel(self.timing, Timing(self.residual_delay + 1, 0, stride))
        self.gcn = spatial(in_width, out_width)
        self.tcn: TemporalUnit | BranchedTemporalUnit
        if branched:
            self.tcn = BranchedTemporalUnit(out_width, stride, padding)
        else:
            self.tcn = TemporalUnit(out_width, out_width, kernel, stride, padding)
        self.has_residual, self.residual = residual, None
        if residual and (in_width != out_width or stride > 1):
            self.residual = TemporalUnit(in_width, out_width, 1, stride, "same")

    def resize(self) -> None:
        """Take the widths from the weights."""
        gcn: Any = self.gcn
        self.in_width, self.out_width = gcn.in_width, len(self.tcn.bn.weight)

    @property
    def residual_delay(self) -> int:
        """Steps from the arrival of a frame to the output that it is added to."""
        return 0 if self.form == "causal" else (self.kernel - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T', V, O] for a clip ``x`` [N, T, V, C]."""
        y: Tensor = F.dropout(self.tcn(self.gcn(x)), self.dropout, self.training)
        if not self.has_residual:
            return F.relu(y)
        if self.form == "none":
            cut = (self.kernel - 1) // 2
            x = x[:, cut : x.shape[1] - cut]
        return F.relu(y + (x if self.residual is None else self.residual(x)))

    def count_frames(self, frames: int) -> int:
        """Return the number of output frames for a clip of ``frames`` frames."""
        pads = sides(self.form, self.kernel)
        return max(0, (frames + sum(pads) - self.kernel) // self.stride + 1)

    def count_macs(self, joints: int) -> tuple[int, int]:
        """Return the multiply-accumulates of one person's input frame, and of an output frame."""
        of_input, of_output = self.tcn.count_macs()
        if self.residual is not None:
            of_output += self.residual.count_macs()[1]
        return cast(Any, self.gcn).count_macs() + joints * of_input, joints * of_output


class SkeletonLayers(Protocol):
    """The layers of a ``SkeletonNet``, as its step form reads them."""

    persons: int
    joints: int
    channels: int
    form: str  # one of PADDINGS
    data_bn: nn.BatchNorm1d
    fc: nn.Linear
    reading: nn.Linear | None
    mean: TemporalMean
    statistics: TemporalStatistics | None
    layer_timing: Timing

    @property
    def blocks(self) -> list[SkeletonBlock]:
        """The blocks in their order."""

    def parameters(self) -> Iterator[nn.Parameter]: ...  # noqa: D102

    def buffers(self) -> Iterator[Tensor]: ...  # noqa: D102
