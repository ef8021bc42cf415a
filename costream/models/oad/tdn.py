"""Temporal difference network: a small convolutional backbone for appearance and motion.

One token per frame, and no frame is processed twice. The stem computes the feature maps of an
image once; motion is the difference between these and those of earlier frames, which are stored
in a ring (differences of features instead of optical flow: TDN, Wang et al., CVPR 2021). A map of
where persons are weights the places that are pooled into the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.models.frontend import frontend
from costream.models.oad.changed_body import ChangedBody, KeptBody
from costream.models.oad.image_context import ImageContext
from costream.nn import fast
from costream.nn.folding import Foldable, Folded
from costream.nn.graph import scale_and_shift
from costream.nn.state import State, zeros

_SCALE = 1 / 64  # of pixels
_RARELY = 8  # factor by which image contexts are fewer ...
_MANY = 0.05  # ... where for each frame that is computed more than this might not be
_CALM = 64  # frames computed after one that might not be, before all is computed in full again


@dataclass
class DifferenceState(State):
    """Motion maps of the newest frames of each stream, and its number of frames."""

    ring: Tensor  # float32 [B, largest lag, C, h, w], written in place
    count: Tensor  # int64 [B]
    seen: Tensor | None = None  # float32 [B, G], the newest image context, if there is any

    def __post_init__(self) -> None:
        # Of the newest frame of a single stream that was computed; it cannot be copied or saved.
        self.held: HeldFrame | None = None

    def reset(self, rows: Iterable[int] | None = None) -> None:
        """Clear these streams (default: all)."""
        super().reset(rows)
        self.held = None

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Copy the values of ``tensors()``, as ``State.load_tensors`` does."""
        super().load_tensors(tensors)
        self.held = None

    def put(self, rows: Iterable[int], other: DifferenceState) -> None:
        """Copy the streams of ``other`` into these rows, as ``State.put`` does."""
        super().put(rows, other)
        self.held = None


@dataclass
class HeldFrame:
    """A frame whose token stands for later ones, see ``forward_held``."""

    frame: Tensor  # uint8 [1, 3, H, W]
    tokens: Tensor  # [1, D]
    steps: int  # since the motion map of this frame was stored first
    settled: bool  # whether the token has no motion: all stored motion maps are of this frame
    computed: int  # frames that were computed since the newest image context
    denied: int = 0  # frames since then that might not be
    calm: int = _CALM  # frames that were computed since the newest that might not be
    look: Iterator[tuple[int, Tensor | None]] | None = None  # an image context in the making
    body: KeptBody | None = None

    @property
    def tight(self) -> bool:
        """Whether a frame might not be computed lately."""
        return self.calm < _CALM


class FoldedDifference(Folded):
    """The convolutions of a ``TemporalDifferenceNet`` in evaluation, with the norms folded in."""

    def __init__(self, net: TemporalDifferenceNet) -> None:
        super().__init__([*net.parameters(), *net.buffers()])
        pixels, *stem = cast(Any, net.stem)
        self._stem = [_folded(pixels[0], pixels[1], _SCALE)]
        self._stem += [_folded(layer[0], layer[1]) for layer in stem]
        self._map_size = net.map_size
        self.motion = _folded(net.motion)
        first, *blocks = cast(Any, net.body)
        self._first = _folded(first[0], first[1])
        self._blocks = [
            (_folded(block.first[0], block.first[1]), _folded(block.second, block.norm))
            for block in blocks
        ]
        places: Any = net.places
        self.focus, self._places = _folded(net.focus), _folded(places[0], places[1])

    def maps(self, frames: Tensor) -> Tensor:
        """Return the feature maps of images [N, 3, H, W]."""
        for convolution in self._stem:
            frames = convolution(frames).relu_()
        return frames

    @cached_property
    def changed(self) -> ChangedBody:
        """The body, for steps that compute the places that have changed."""
        return ChangedBody(self._first, self._blocks, self.focus, self._places, self._map_size)

    def body(self, x: Tensor) -> Tensor:
        """Return the output of the body for maps [N, C, h, w]."""
        x = self._first(x).relu_()
        for first, second in self._blocks:
            x = second(first(x).relu_()).add_(x).relu_()
        return x

    def places(self, body: Tensor) -> Tensor:
        """Return the places that are pooled, [N, C, h, w]."""
        return self._places(body).relu_()


@frontend("tdn", order=1, holds=True)
class TemporalDifferenceNet(Foldable[FoldedDifference]):
    """Backbone for fixed cameras: one token of ``token_width`` values per frame.

    ``box`` is the width and height that images are fitted into; ``lags`` are the distances, in
    frames, over which motion is measured. Without lags it is a plain image network. A
    difference to a time before the first frame is zero. Normalisation is BatchNorm with
    fixed statistics (``eval``), so that a step does not depend on other frames or streams.

    ``widths``: channels of the two stem layers (1/2 and 1/4 of the image), of the body (1/8),
    and of the places that are pooled; a token has twice the last. ``blocks``: depth of the body.

    ``glimpse_width``: features of an ``ImageContext`` that are appended to the token. They are
    computed for every ``glimpse_every``-th frame, because they change slowly.
    """

    takes = "video"

    def __init__(
        self,
        box: Sequence[int] = (128, 96),
        widths: Sequence[int] = (16, 24, 64, 128),
        motion_width: int = 12,
        lags: Sequence[int] = (1, 4, 16),
        blocks: int = 2,
        glimpse_width: int = 0,
        glimpse_every: int = 8,
    ) -> None:
        super().__init__()
        if list(lags) != sorted(set(lags)) or (lags and lags[0] < 1):
            raise ValueError(f"lags must be positive and increasing, not {tuple(lags)}")
        first, stem, body, last = widths
        self.box = (int(box[0]), int(box[1]))
        self.lags = tuple(int(lag) for lag in lags)
        self.token_width = 2 * last + glimpse_width
        self.glimpse = ImageContext(glimpse_width) if glimpse_width else None
        self.glimpse_width, self.glimpse_every = glimpse_width, glimpse_every
        self.stem = nn.Sequential(_conv(3, first, 5, 2), _conv(first, stem, 3, 2))
        self.motion = nn.Conv2d(stem, motion_width, 1, bias=False)
        self.body = nn.Sequential(
            _conv(stem + motion_width * len(self.lags), body, 3, 2),
            *(_Residual(body) for _ in range(blocks)),
        )
        self.places = _conv(body, last, 1, 1)
        self.focus = nn.Conv2d(body, 1, 1)
        # Convolutions over interleaved channels take about half the time on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def resize(self) -> None:
        """Take the width of tokens from the weights."""
        if self.glimpse is not None:
            self.glimpse_width = self.glimpse.project.out_channels
        self.token_width = 2 * cast(Any, self.places)[0].out_channels + self.glimpse_width

    def prepare(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 [h, w, 3], centred on black, uint8 [3, H, W].

        Channels lie innermost in memory, as convolutions read them. Raise ValueError if it is
        larger than ``box``, and for other arrays.
        """
        check_image(rgb)
        width, height = self.box
        top, left = (height - rgb.shape[0]) // 2, (width - rgb.shape[1]) // 2
        if top < 0 or left < 0:
            raise ValueError(f"an image of {rgb.shape[1]}x{rgb.shape[0]} does not fit {self.box}")
        out = np.zeros((height, width, 3), np.uint8)
        out[top : top + rgb.shape[0], left : left + rgb.shape[1]] = rgb
        channels_first: npt.NDArray[np.uint8] = out.transpose(2, 0, 1)
        return channels_first

    def forward(self, frames: Tensor) -> Tensor:
        """Return the tokens [B, T, D] of clips, uint8 [B, T, 3, H, W], from their start."""
        batch, steps = frames.shape[:2]
        maps = self._maps(frames.flatten(0, 1))
        parts = [maps]
        if self.lags:
            motion = self.motion(maps).unflatten(0, (batch, steps))
            for lag in self.lags:
                moved = motion[:, lag:] - motion[:, :-lag]
                still = motion.new_zeros(batch, min(lag, steps), *motion.shape[2:])
                parts.append(torch.cat((still, moved), dim=1).flatten(0, 1))
        tokens = self._tokens(_join(parts))[0].view(batch, steps, -1)
        if self.glimpse is None:
            return tokens
        looked = self.glimpse(frames[:, :: self.glimpse_every].flatten(0, 1))
        every = looked.unflatten(0, (batch, -1)).repeat_interleave(self.glimpse_every, 1)
        return torch.cat((tokens, every[:, :steps]), 2)

    def forward_moments(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [N, D] of single moments and logits [N, h, w] for the presence of persons.

        ``frames``, uint8 [N, 1 + lags, 3, H, W]: the frame of the moment and one frame per lag
        before it. Repeating it in place of an earlier one means no motion. For training.
        """
        count = frames.shape[:2]
        every = self._maps(frames.flatten(0, 1))
        maps = every.unflatten(0, count)  # type: ignore[no-untyped-call]
        parts = [maps[:, 0]]
        if self.lags:
            motion = self.motion(every).unflatten(0, count)
            parts += [motion[:, 0] - motion[:, k + 1] for k in range(len(self.lags))]
        tokens, focus = self._tokens(_join(parts))
        if self.glimpse is not None:
            tokens = torch.cat((tokens, self.glimpse(frames[:, 0])), 1)
        return tokens, focus

    def init_state(self, batch_size: int = 1) -> DifferenceState:
        """Return the initial state of a batch of streams."""
        height, width = self.map_size
        slots, weight = max(self.lags, default=0), self.motion.weight
        if not self.training:
            self.folded()
        # Interleaved channels, as the maps have them
        ring = zeros(batch_size, slots, height, width, len(weight), like=weight)
        seen = zeros(batch_size, self.glimpse_width, like=weight) if self.glimpse else None
        return DifferenceState(ring.permute(0, 1, 4, 2, 3), zeros(batch_size), seen)

    def forward_step(self, frames: Tensor, state: DifferenceState) -> Tensor:
        """Return the tokens [B, D] of the next frame of every stream, uint8 [B, 3, H, W].

        In evaluation with the parameters at the last call of ``init_state``.
        """
        due = (state.count % self.glimpse_every == 0).nonzero()[:, 0]
        state.held = None
        return self._step(frames, state, due)

    def forward_held(
        self, frame: Tensor, state: DifferenceState, *, may: bool
    ) -> tuple[Tensor, int]:
        """Return the token [1, D] of the next frame of a stream, or a held one, and the operations.

        The newest token and motion map that were computed are held where ``may`` is false, and
        where nothing moves: there the token equals that of ``forward_step``, unless ``may`` was
        false for one of the ``_CALM`` frames before. After such a frame, computed ones cost less,
        so that more can be: of the body only what has changed, see ``changed_body``, and of a new
        image context one layer for each frame. It is computed for every ``glimpse_every``-th frame
        that is computed, and eight times less often where many may not be.

        ``frame``, uint8 [1, 3, H, W].
        """
        held, slots, same = state.held, state.ring.shape[1], False
        if held is None:
            held = state.held = HeldFrame(frame, frame.new_zeros(0), 0, False, self.glimpse_every)
        else:
            same = torch.equal(frame, held.frame)
            held.steps += 1
            still = same and held.settled
            if not may or still:
                if not still:
                    held.denied, held.calm = held.denied + 1, 0
                if slots:
                    count = int(state.count)
                    state.ring[:, count % slots] = state.ring[:, (count - 1) % slots]
                state.count += 1
                return held.tokens, 0
        net = self._fast()
        tokens, macs = self._held_tokens(self._joined(frame, state, net), held, net)
        if self.glimpse is not None and state.seen is not None:
            macs += self._look(frame, state.seen, held)
            tokens = torch.cat((tokens, state.seen), 1)
        state.count += 1
        held.frame, held.tokens = frame, tokens
        held.steps = held.steps if same else 0
        held.settled, held.calm = held.steps >= slots, held.calm + 1
        return tokens, macs

    def _held_tokens(self, joined: Tensor, held: HeldFrame, net: Any) -> tuple[Tensor, int]:
        """Return tokens [1, D] of maps and motion [1, C, h, w], and the operations."""
        stem, place = self._part_macs()
        if held.tight:
            changed = (self._folded or self.folded()).changed
            held.body = held.body or changed.init_state()
            focus, places, count = changed.step(joined, held.body)
            return _pooled(focus, places), stem + count * place
        held.body = None
        high, wide = (-(-side // 2) for side in self.map_size)
        return self._tokens(joined, net)[0], stem + high * wide * place

    def _look(self, frame: Tensor, seen: Tensor, held: HeldFrame) -> int:
        """Write a new image context of a frame that is computed, if it is due, to ``seen`` [1, G].

        Returns the operations. Where the budget is tight, a context is made by one layer a frame.
        """
        glimpse = cast(ImageContext, self.glimpse)
        held.computed += 1
        every = self.glimpse_every * (_RARELY if held.denied > _MANY * held.computed else 1)
        if held.computed >= every and not (held.tight and held.look is not None):
            held.computed = held.denied = 0
            if not held.tight:
                held.look = None
                seen.copy_(glimpse(frame))
                return glimpse.count_macs(self.box[1], self.box[0])
            held.look = glimpse.by_layer(frame)
        if held.look is None:
            return 0
        macs, features = next(held.look)
        if features is not None:
            held.look = None
            seen.copy_(features)
        return macs

    def _step(self, frames: Tensor, state: DifferenceState, due: Tensor) -> Tensor:
        """Return the tokens of a step; streams ``due``, int64 [n], get a new image context."""
        net = self._fast()
        tokens = self._tokens(self._joined(frames, state, net), net)[0]
        if self.glimpse is not None and state.seen is not None:
            if len(due):
                state.seen[due] = self.glimpse(frames[due])
            tokens = torch.cat((tokens, state.seen), 1)
        state.count += 1
        return tokens

    def _joined(self, frames: Tensor, state: DifferenceState, net: Any) -> Tensor:
        """Return maps and motion [B, C, h, w] of the next frames; store the motion maps."""
        maps = self._maps(frames, net)
        parts = [maps]
        if self.lags:
            motion, slots = net.motion(maps), state.ring.shape[1]
            for lag in self.lags:
                moved, seen = motion - state.ring[_at(state.count - lag, slots)], state.count >= lag
                if not bool(seen.all()):
                    moved = moved * seen[:, None, None, None].to(moved.device)
                parts.append(moved)
            state.ring[_at(state.count, slots)] = motion
        return _join(parts)

    def forward_steps(self, frames: Tensor, state: DifferenceState) -> Tensor:
        """Return the tokens [B, T, D] of the next T frames of every stream, uint8 [B, T, 3, H, W].

        The same as T calls of ``forward_step``, with larger matrix products.
        """
        batch, steps = frames.shape[:2]
        net = self._fast()
        state.held = None
        maps = self._maps(frames.flatten(0, 1), net)
        joined = self._with_motion(maps, net.motion(maps), state) if self.lags else maps
        tokens = self._tokens(joined, net)[0].view(batch, steps, -1)
        if self.glimpse is not None and state.seen is not None:
            seen = state.seen[:, None].expand(-1, steps, -1)
            due = (state.count[:, None] + torch.arange(steps)) % self.glimpse_every == 0
            if bool(due.any()):
                looks = due.cumsum(1)  # of each stream so far
                first = looks[:, -1:].cumsum(0) - looks[:, -1:]  # its first look among all
                newest = self.glimpse(frames[due])[(first + looks - 1).clamp(min=0)]
                seen = torch.where((looks > 0)[:, :, None].to(newest.device), newest, seen)
                state.seen.copy_(seen[:, -1])
            tokens = torch.cat((tokens, seen), 2)
        state.count += steps
        return tokens

    def _with_motion(self, maps: Tensor, motion: Tensor, state: DifferenceState) -> Tensor:
        """Return maps and their motion over each lag, [N, C, h, w]; store the motion maps.

        ``maps``, ``motion``: of the next frames of every stream. Channels lie innermost in memory.
        """
        batch, slots = state.ring.shape[:2]
        motion = motion.permute(0, 2, 3, 1).reshape(batch, -1, *motion.shape[2:], motion.shape[1])
        ring, steps = state.ring.permute(0, 1, 3, 4, 2), motion.shape[1]
        parts, rows = [maps.permute(0, 2, 3, 1)], torch.arange(batch)[:, None]
        for lag in self.lags:
            times = state.count[:, None] + torch.arange(min(lag, steps)) - lag
            earlier = ring[rows, times % slots]
            if steps > lag:
                earlier = torch.cat((earlier, motion[:, :-lag]), 1)
            moved = motion - earlier
            if bool((times < 0).any()):
                moved[:, :lag] *= (times >= 0).to(moved.device)[:, :, None, None, None]
            parts.append(moved.flatten(0, 1))
        times = state.count[:, None] + torch.arange(max(0, steps - slots), steps)
        ring[rows, times % slots] = motion[:, -slots:]
        return torch.cat(parts, 3).permute(0, 3, 1, 2)

    def count_macs(self) -> int:
        """Return the multiply-accumulates of one frame."""
        stem, place = self._part_macs()
        high, wide = (-(-side // 2) for side in self.map_size)
        total = stem + high * wide * place
        if self.glimpse is not None:
            total += self.glimpse.count_macs(self.box[1], self.box[0]) // self.glimpse_every
        return total

    def _part_macs(self) -> tuple[int, int]:
        """Return the multiply-accumulates of maps and motion, and of a place of the body."""
        stem = 0
        for part, scale in ((self.stem[0], 2), (self.stem[1], 4), (self.motion, 4)):
            pixels = -(-self.box[0] // scale) * -(-self.box[1] // scale)
            if part is not self.motion or self.lags:
                stem += pixels * _weights(part)
        return stem, sum(_weights(part) for part in (self.body, self.places, self.focus))

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width of the feature maps."""
        return -(-self.box[1] // 4), -(-self.box[0] // 4)

    def maps(self, frames: Tensor) -> Tensor:
        """Return the feature maps of images [N, 3, H, W]."""
        return self.stem(frames * _SCALE)  # type: ignore[no-any-return]

    def fold(self) -> FoldedDifference:
        """Return the folded convolutions, for steps."""
        return FoldedDifference(self)

    def _fast(self) -> Any:
        """Return the network that computes steps: folded, or in training this one."""
        readable = self.training or torch.is_grad_enabled() or not fast.enabled()
        return self if readable else self._folded or self.folded()

    def _maps(self, frames: Tensor, net: Any = None) -> Tensor:
        pixels = frames.to(self.motion.weight.dtype, memory_format=torch.channels_last)
        return (net or self).maps(pixels)

    def _tokens(self, joined: Tensor, net: Any = None) -> tuple[Tensor, Tensor]:
        """Return tokens [N, D] and focus logits [N, h, w] of maps and motion, [N, C, h, w]."""
        net = net or self
        body = net.body(joined)
        focus, places = net.focus(body), net.places(body)
        return _pooled(focus, places), focus[:, 0]


class _Residual(nn.Module):
    """Two 3x3 convolutions with an identity shortcut (He et al., CVPR 2016)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _conv(width, width, 3, 1)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.second(self.first(x))), inplace=True)


def _pooled(focus: Tensor, places: Tensor) -> Tensor:
    """Return tokens [N, 2 C] of places [N, C, h, w] and focus logits [N, 1, h, w]."""
    weight = focus.sigmoid()
    # Without persons the sum of weights is small, and so is this half of the token.
    seen = (weight * places).sum((2, 3)) / (weight.sum((2, 3)) + 1)
    return torch.cat((seen, places.amax((2, 3))), 1)


def _weights(part: nn.Module) -> int:
    """Return the number of weights of convolutions."""
    return sum(p.numel() for p in part.parameters() if p.ndim == 4)


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Return the channels of all parts [N, C, h, w], innermost in memory."""
    return torch.cat([p.contiguous(memory_format=torch.channels_last) for p in parts], 1)


def _at(count: Tensor, slots: int) -> tuple[Any, Any]:
    """Return the index of the frame ``count`` [B] of each stream in rings, a view if it is one."""
    if len(count) == 1:
        return slice(None), int(count) % slots
    return torch.arange(len(count)), count % slots


def _folded(
    convolution: nn.Conv2d, norm: nn.BatchNorm2d | None = None, times: float = 1.0
) -> partial[Tensor]:
    """Return a convolution of inputs times a number, with the norm after it, as one product."""
    weight, bias = convolution.weight.detach() * times, convolution.bias
    if norm is not None:
        scale, bias = scale_and_shift(norm)
        weight = weight * scale[:, None, None, None]
    weight = weight.contiguous(memory_format=torch.channels_last)
    options = {"stride": convolution.stride, "padding": convolution.padding}
    return partial(torch.conv2d, weight=weight, bias=bias, **options)


def _conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def check_image(rgb: npt.NDArray[np.uint8]) -> None:
    """Raise ValueError unless an array is an image, uint8 [h, w, 3], with at least one pixel."""
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != "uint8" or not rgb.size:
        raise ValueError(f"an image must be uint8 [h, w, 3], not {rgb.dtype} {list(rgb.shape)}")
