"""Networks with recurrences, shifts and tables of positions, written as they are published."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import costream.nn as co


class Ema(nn.Module):
    """Exponential averages with a learnt rate for each feature."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        a = torch.sigmoid(self.rate)
        return co.scan((1 - a) * x, a, dim=1)


class Mamba(nn.Module):
    """A block of Mamba: causal convolution, selective scan, gate."""

    def __init__(self, width: int = 6, states: int = 4) -> None:
        super().__init__()
        inner = 2 * width
        self.norm = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.x_proj = nn.Linear(inner, 3 + 2 * states, bias=False)
        self.dt_proj, self.sizes = nn.Linear(3, inner), (3, states, states)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1).repeat(inner, 1)))
        self.D, self.out_proj = nn.Parameter(torch.ones(inner)), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.in_proj(self.norm(x)).chunk(2, -1)
        u = self.conv1d(u.transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2)
        u = F.silu(u)
        dt, b, c = torch.split(self.x_proj(u), self.sizes, -1)
        dt = F.softplus(self.dt_proj(dt))
        decay = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.A_log))
        h = co.scan((dt * u).unsqueeze(-1) * b.unsqueeze(2), decay, dim=1)
        y = (h * c.unsqueeze(2)).sum(-1) + self.D * u
        return x + self.out_proj(y * F.silu(z))


class RgLru(nn.Module):
    """The real-gated linear recurrent unit of Griffin."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gates, self.rate = nn.Linear(width, 2 * width), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        r, i = torch.sigmoid(self.gates(x)).chunk(2, -1)
        log_a = -8 * F.softplus(self.rate) * r
        return co.scan(torch.sqrt(1 - torch.exp(2 * log_a)) * i * x, torch.exp(log_a), dim=1)


class LinearAttention(nn.Module):
    """Causal linear attention with sums over time."""

    def __init__(self, width: int = 6, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)) for y in (F.elu(q) + 1, F.elu(k) + 1, v))
        kv = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=1)
        y = (q.unsqueeze(-1) * kv).sum(-2) / (q * k.cumsum(1)).sum(-1, keepdim=True)
        return self.out(y.flatten(2))


class GatedLinearAttention(nn.Module):
    """A state of keys and values whose rows decay with gates; with ``constant``, a retention."""

    def __init__(self, width: int = 6, *, constant: bool = False) -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        decay: Any = 0.9 if self.constant else torch.sigmoid(self.gate(x)).unsqueeze(-1)
        h = co.scan(k.unsqueeze(-1) * v.unsqueeze(-2), decay, dim=1)
        return (q.unsqueeze(-1) * h).sum(-2)


class MinGru(nn.Module):
    """A GRU whose gates do not see its state."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.z, self.h = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.sigmoid(self.z(x))
        return co.scan(z * self.h(x), 1 - z, dim=1)


class Qrnn(nn.Module):
    """A quasi-recurrent network: gates of a causal convolution, over clips [B, C, T]."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, 3 * width, 2)

    def forward(self, x: Tensor) -> Tensor:
        z, f, o = self.conv(F.pad(x, (1, 0))).chunk(3, 1)
        f = torch.sigmoid(f)
        return torch.sigmoid(o) * co.scan((1 - f) * torch.tanh(z), f, dim=2)


class Sru(nn.Module):
    """A simple recurrent unit, with its highway."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        y, f, r = self.linear(x).chunk(3, -1)
        f, r = torch.sigmoid(f), torch.sigmoid(r)
        c = co.scan(y - f * y, f, 1)
        return r * torch.tanh(c) + (1 - r) * x


class S4d(nn.Module):
    """A diagonal state space with complex numbers."""

    def __init__(self, width: int = 6, states: int = 3) -> None:
        super().__init__()
        self.log_rate, self.angle = (
            nn.Parameter(torch.rand(width, states)),
            nn.Parameter(torch.randn(width, states)),
        )
        self.c = nn.Parameter(torch.randn(width, states, 2))

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.polar(torch.exp(-torch.exp(self.log_rate)), self.angle)
        h = co.scan(x.unsqueeze(-1) + 0 * decay, decay, dim=1)
        return 2 * (h * torch.view_as_complex(self.c)).real.sum(-1)


class TemporalShift(nn.Module):
    """TSM: channels of the frame before, and with ``both`` of the frame after, then a block."""

    def __init__(self, width: int = 16, *, both: bool = False, div: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv3d(width, width, (1, 3, 3), padding=(0, 1, 1))
        self.both, self.fold = both, width // div

    def forward(self, x: Tensor) -> Tensor:
        fold, out = self.fold, torch.zeros_like(x)
        if self.both:
            out[:, :fold, :-1] = x[:, :fold, 1:]
        out[:, fold : 2 * fold, 1:] = x[:, fold : 2 * fold, :-1]
        out[:, 2 * fold :] = x[:, 2 * fold :]
        if not self.both:
            out[:, :fold] = x[:, :fold]
        return x + F.relu(self.conv(out))


class FramesFirstShift(nn.Module):
    """TSM on clips [B, T, C, H, W], within a residual network of frames."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv, self.fold = nn.Conv2d(width, width, 3, padding=1), width // 8

    def forward(self, x: Tensor) -> Tensor:
        out, t = torch.zeros_like(x), x.shape[1]
        out[:, 1:, : self.fold] = x[:, : t - 1, : self.fold]
        out[:, :, self.fold :] = x[:, :, self.fold :]
        return x + self.conv(out.flatten(0, 1)).unflatten(0, (-1, t))


class LastState(nn.Module):
    """A classifier of the last states of a recurrent layer, as ``read`` takes them."""

    def __init__(self, layer: nn.Module, read: Any, width: int, classes: int = 3) -> None:
        super().__init__()
        self.layer, self.read, self.fc = layer, read, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        _, states = self.layer(x)
        return self.fc(self.read(states))


class CnnLstm(nn.Module):
    """A network of frames, then an LSTM, whose last h is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.lstm, self.fc = nn.LSTM(4, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape[:2]
        y = self.cnn(x.flatten(0, 1)).view(b, t, -1)
        _, (h, _c) = self.lstm(y)
        return self.fc(h[-1])


class Positioned(nn.Module):
    """Rows with a learnt table of positions, then attention; ``buffer``: a table that is longer."""

    def __init__(self, rows: int, *, first: bool = False) -> None:
        super().__init__()
        self.pos, self.first = nn.Parameter(torch.randn(1, rows, 8)), first
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        pos = self.pos[:, : x.shape[1]]
        return self.fc(self.layer(pos + x if self.first else x + pos))


class Embedded(nn.Module):
    """Frames [B, C, T] with embedded positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(30, 4), nn.Conv1d(4, 4, 3, padding=(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x + self.table(torch.arange(x.shape[2])).T)


class LoopedScan(nn.Module):
    """A recurrence that is written as a loop over the frames."""

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = 0.9 * h + x[:, t]
            out.append(h)
        return torch.stack(out, 1)


class SegmentShift(nn.Module):
    """TSM in TSN as published: frames are in the batch. ``segments``: their number, or -1."""

    def __init__(self, segments: int = -1) -> None:
        super().__init__()
        self.segments = segments
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def shift(self, x: Tensor, batch: Any) -> Tensor:
        nt, c, h, w = x.size()
        x, fold = x.view(batch, self.segments, c, h, w), c // 8
        out = torch.zeros_like(x)
        out[:, :-1, :fold] = x[:, 1:, :fold]
        out[:, 1:, fold : 2 * fold] = x[:, :-1, fold : 2 * fold]
        out[:, :, 2 * fold :] = x[:, :, 2 * fold :]
        return out.view(nt, c, h, w)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        y = F.relu(self.first(x.view(-1, 3, *x.shape[-2:])))
        y = F.relu(self.second(self.shift(y, -1 if self.segments > 0 else batch)))
        return self.fc(y.mean((2, 3))).view(batch, -1, 4).mean(1)


class Sinusoidal(nn.Module):
    """Rows with a buffer of positions, then an LSTM that begins with zeros, time first."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(50.0)[:, None] / 10_000 ** (torch.arange(6) / 6)
        self.register_buffer("pe", torch.sin(angles)[None])
        self.lstm, self.fc = nn.LSTM(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h0 = x.new_zeros(1, x.size(0), 5)
        out, _ = self.lstm((x + self.pe[:, : x.size(1)]).transpose(0, 1), (h0, h0))
        return self.fc(out[-1])
