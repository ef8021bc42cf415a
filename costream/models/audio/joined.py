"""Audio frontends side by side, with their tokens concatenated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costream.models.frontend import frontend, load_frontend
from costream.nn.state import State


@dataclass
class JoinedSoundState(State):
    """States of all parts."""

    parts: tuple[State, ...]


@frontend("joined-audio", order=16)
class JoinedSound(nn.Module):
    """Concatenates the tokens of several audio frontends, which all get the same blocks.

    Args:
        parts: keys of ``models.frontend.FRONTENDS``, each with its keyword arguments.

    Raises ValueError unless there are several and their blocks and sample rates are the same.
    """

    takes = "audio"

    def __init__(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({k: load_frontend(k, **given) for k, given in parts.items()})
        sounds = {
            (part.takes, getattr(part, "sample_rate_hz", None), getattr(part, "block", None))
            for part in self.each()
        }
        if len(self.parts) < 2 or len(sounds) > 1 or next(iter(sounds))[0] != "audio":
            raise ValueError(f"{list(parts)} are not several audio frontends with the same blocks")
        _, self.sample_rate_hz, self.block = sounds.pop()

    def each(self) -> Iterator[Any]:
        """Yield the parts."""
        yield from self.parts.values()

    def columns(self) -> dict[str, slice]:
        """Return where in a token that of each part is."""
        out, begin = {}, 0
        for name, part in zip(self.parts, self.each(), strict=True):
            out[name] = slice(begin, begin + int(part.token_width))
            begin = out[name].stop
        return out

    @property
    def token_width(self) -> int:
        """D of the tokens, the sum of those of the parts."""
        return sum(int(part.token_width) for part in self.each())

    @property
    def exact(self) -> bool:
        """Whether tokens equal a recomputation of all that they depend on."""
        return all(getattr(p, "exact", not hasattr(p, "dense_macs")) for p in self.each())

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of T blocks [B, T, block]."""
        return torch.cat([part(x) for part in self.each()], -1)

    def init_state(self, batch_size: int = 1) -> JoinedSoundState:
        """Return the initial state of a batch of streams."""
        return JoinedSoundState(tuple(part.init_state(batch_size) for part in self.each()))

    def forward_step(self, x: Tensor, state: JoinedSoundState) -> Tensor:
        """Take a block [B, block] of every stream, return its token [B, D]."""
        pairs = zip(self.each(), state.parts, strict=True)
        return torch.cat([part.forward_step(x, each) for part, each in pairs], -1)

    def forward_steps(self, x: Tensor, state: JoinedSoundState) -> Tensor:
        """Take T blocks [B, T, block] of every stream, return T tokens [B, T, D]."""
        pairs = zip(self.each(), state.parts, strict=True)
        return torch.cat([part.forward_steps(x, each) for part, each in pairs], -1)

    def newest_spectrum(self, state: JoinedSoundState) -> Tensor:
        """Return the newest frames of the first part's spectrogram, [B, frames, bands]."""
        frames: Tensor = next(self.each()).newest_spectrum(state.parts[0])
        return frames

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""
        return sum(int(part.count_macs()) for part in self.each())

    @property
    def dense_macs(self) -> int:
        """The same when the parts recompute all that a token depends on."""
        return sum(
            int(getattr(part, "dense_macs", None) or part.count_macs()) for part in self.each()
        )
