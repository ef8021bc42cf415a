"""Convolution over time and frequency, ordinary and continual: causal in time.

Spectrogram frames arrive several at a time (a hop of audio is a dozen of them), so a step is a
convolution over a few frames and the few earlier ones that it still reaches; no frame passes
through a layer twice (the continual convolution of Hedegaard, Iosifidis, ECCV 2022, in 2D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.nn.state import zeros


class TimeFrequencyConvolution(nn.Module):
    """Convolution of images of frames x bands, features last; zeros precede frame 0.

    ``weight`` has the shape and the name of ``torch.nn.Conv2d``'s, [O, I, K_time, K_band]. Frames
    are padded in front so that output j needs frames up to (j + 1) * stride - 1; bands on both
    sides by (K_band - 1) / 2, or not at all for an even kernel. The state of a stream is a tensor
    of the last K_time - stride frames.

    Args:
        in_width: I. ``out_width``: O.
        kernel, stride: over frames and bands. bias: whether there is a bias.

    Raises ValueError for a kernel over time that is shorter than its stride.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_width: int,
        out_width: int,
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not 1 <= stride[0] <= kernel[0] or stride[1] < 1:
            raise ValueError(f"strides {stride} must be at least 1, in time at most {kernel[0]}")
        self.in_width, self.out_width = in_width, out_width
        self.kernel, self.stride = kernel, stride
        self.reach = kernel[0] - stride[0]  # frames before the new ones
        self.pads = (0, (kernel[1] - 1) // 2 if kernel[1] % 2 else 0)
        # The layout in which a convolution of few frames runs at full speed; in torch's own one the
        # weights are rearranged at every call, which takes two to four times as long.
        weight = torch.empty(out_width, *kernel, in_width).permute(0, 3, 1, 2)
        self.weight = nn.Parameter(weight)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_width)) if bias else None)
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T / stride, F', O] of a clip [B, T, F, I]; T is a multiple of the stride."""
        return self._convolve(F.pad(x, (0, 0, 0, 0, self.reach, 0)))

    def init_state(self, batch_size: int, bands: int) -> Tensor:
        """Return the initial state: zero frames [B, K_time - stride, F, I] for F bands."""
        return zeros(batch_size, self.reach, bands, self.in_width, like=self.weight)

    def forward_steps(self, x: Tensor, past: Tensor) -> Tensor:
        """Take frames [B, T, F, I], return [B, T / stride, F', O] and update ``past`` in place."""
        if not self.reach:
            return self._convolve(x)
        rows = torch.cat([past, x], 1)
        past.copy_(rows[:, -self.reach :].detach())
        return self._convolve(rows)

    def bands(self, bands: int) -> int:
        """Return the number of output bands F' for F input bands."""
        return (bands + 2 * self.pads[1] - self.kernel[1]) // self.stride[1] + 1

    def count_macs(self, frames: int, bands: int) -> int:
        """Return the multiply-accumulates for this many new frames and bands of one stream."""
        taps = self.kernel[0] * self.kernel[1] * self.in_width * self.out_width
        return frames // self.stride[0] * self.bands(bands) * taps

    def _convolve(self, rows: Tensor) -> Tensor:
        images = rows.permute(0, 3, 1, 2)
        out = F.conv2d(images, self.weight, self.bias, self.stride, self.pads)
        return out.permute(0, 2, 3, 1)
