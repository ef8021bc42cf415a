"""Networks over the newest frames of a spectrogram, computed anew at each hop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from costream.models.oad.cooadtr import OadOutput
from costream.nn import fast
from costream.nn.state import State, zeros

_SAVED = 25  # in units of 0.1 ms, by the compiled step of a small network


@dataclass
class SpectrogramWindowState(State):
    """The newest frames of each stream."""

    frames: Tensor  # [B, window_frames - hop_frames, bands], the newest last
    hops: Tensor  # int64 [B], processed so far


class SpectrogramWindows(nn.Module):
    """Base of networks whose ``forward`` returns logits [N, K] for windows [N, T, bands].

    Before the first frame of a stream there is silence. A window has at least ``shortest`` frames,
    silence included, and otherwise those that there are, at most ``window_frames``.

    Args:
        num_classes: K.
        hop_frames: frames of a token.
        window_frames: most frames of a window. ``bands``: values of a frame.
        silence: value of a frame of silence.
        shortest: fewest frames of a window.

    Raises ValueError unless 1 <= hop_frames <= window_frames and shortest <= window_frames.
    """

    delay = 0

    def __init__(
        self,
        num_classes: int,
        hop_frames: int,
        window_frames: int,
        bands: int,
        silence: float,
        shortest: int,
    ) -> None:
        super().__init__()
        if not 1 <= hop_frames <= window_frames or shortest > window_frames:
            raise ValueError(
                f"hop_frames {hop_frames} not in 1 to {window_frames}, the frames of a window, or"
                f" these fewer than {shortest}"
            )
        self.num_classes, self.hop_frames = num_classes, hop_frames
        self.window_frames, self.bands = window_frames, bands
        self.silence, self.shortest = silence, shortest

    @property
    def window(self) -> int:
        """Tokens that an output depends on."""
        return -(-self.window_frames // self.hop_frames)

    @property
    def receptive_field(self) -> int:
        """Tokens that an output depends on."""
        return self.window

    @property
    def delay_steps(self) -> float:
        """Steps from the middle of a sound to that of the steps that find it.

        The time of a step is the end of its window and the beginning of what it is shown for, so
        that this is half a window and half a step.
        """
        return (self.window_frames + self.hop_frames) / 2 / self.hop_frames

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream: a full window."""
        raise NotImplementedError

    def init_state(self, batch_size: int = 1) -> SpectrogramWindowState:
        """Return the initial state of a batch of streams."""
        shape = (batch_size, self.window_frames - self.hop_frames, self.bands)
        return SpectrogramWindowState(
            zeros(*shape, like=next(self.parameters())), zeros(batch_size)
        )

    def warmup(self, state: SpectrogramWindowState, ago: int = 0) -> tuple[bool, ...]:
        """Return for each stream whether its window is not full; ``ago``: steps before."""
        return tuple(n - ago < self.window for n in state.hops.tolist())

    def skip(self, x: Tensor, state: SpectrogramWindowState) -> None:
        """Take T tokens [B, T, hop_frames, bands] of every stream without computing logits."""
        rows = torch.cat([state.frames, x.flatten(1, 2)], 1)
        state.frames.copy_(rows[:, rows.shape[1] - state.frames.shape[1] :])
        state.hops += x.shape[1]

    def forward_step(self, x: Tensor, state: SpectrogramWindowState) -> OadOutput:
        """Take a token [B, hop_frames, bands] of every stream, return the logits [B, K]."""
        if len(x) > 1:
            return OadOutput(self.forward_steps(x[:, None], state).logits[:, 0], None)
        hops = int(state.hops) + 1
        rows = torch.cat([state.frames, x], 1)
        unheard = max(0, self.window_frames - hops * self.hop_frames)
        if unheard:
            rows[:, :unheard] = self.silence
        state.frames.copy_(rows[:, self.hop_frames :])
        state.hops += 1
        length = min(max(hops * self.hop_frames, self.shortest), self.window_frames)
        window = rows[:, self.window_frames - length :] if unheard else rows
        if fast.runs_chains(window) and fast.chains_after(hops * _SAVED):
            from costream.nn.chain import chained

            return OadOutput(chained(self, self.forward, window), None)
        return OadOutput(self(window), None)

    def forward_steps(self, x: Tensor, state: SpectrogramWindowState) -> OadOutput:
        """Take T tokens [B, T, hop_frames, bands] of every stream, return the logits [B, T, K]."""
        held = self.window_frames - self.hop_frames
        heard = (state.hops * self.hop_frames)[:, None]
        unheard = (torch.arange(held, device=x.device) < held - heard)[:, :, None]
        past = state.frames.masked_fill(unheard, self.silence)
        rows = torch.cat([past, x.flatten(1, 2)], 1)
        state.frames.copy_(rows[:, rows.shape[1] - held :])
        windows = rows.unfold(1, self.window_frames, self.hop_frames).transpose(2, 3)
        hops = state.hops[:, None] + torch.arange(1, x.shape[1] + 1, device=x.device)
        state.hops += x.shape[1]
        lengths = (hops * self.hop_frames).clamp(self.shortest, self.window_frames)
        logits = x.new_empty(*lengths.shape, self.num_classes)
        for length in sorted(set(lengths.flatten().tolist())):
            chosen = lengths == length
            logits[chosen] = self(windows[chosen][:, self.window_frames - length :])
        return OadOutput(logits, None)
