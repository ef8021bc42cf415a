"""Falls and people who lie, by a rule on how fast a body comes down and how it is then.

What defines a fall, a fast descent and lying after it, is from Noury et al., "Fall detection -
principles and methods" (EMBS 2007); the constants are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from costream.core.layouts import BODY_15
from costream.models.oad.cooadtr import OadOutput
from costream.models.spec import register_model
from costream.nn.state import State, zeros

LABELS = ("background", "fall", "lie")
SURE = 6.0  # logit of what a rule finds
_HIPS, _HEAD = (BODY_15.joints.index(name) for name in ("hips", "head"))
_ANKLES = [BODY_15.joints.index(f"{side} ankle") for side in ("left", "right")]


@dataclass
class FallState(State):
    """Newest heights of each stream, and how long ago what was found; counters int64 [B]."""

    heights: Tensor  # [B, window, 2] of head and hips, the newest last
    count: Tensor  # steps with a person so far
    down: Tensor  # steps for which a person may still be found on the floor after coming down
    low: Tensor  # steps on the floor, at most ``2 * lying``
    shown: Tensor  # steps for which a fall is still shown


@register_model(
    "falls",
    summary="falls and people who lie, by a rule on joints in pictures",
    listed=17,
    order=17,
    task="skeleton action recognition",
    rate_hz=15.0,
    frontend="joints",
    frontend_arguments={
        "layout": BODY_15.name,
        "axes": 2,
        "normalise": "body",
        "origin": 0,
        "min_score": 0.3,
    },
)
class FallRule(nn.Module):
    """Logits of background, fall and lie for one person, from joints [1, V, 2] of body-15, y up.

    The unit of places is the mean bone, about 0.28 m, of the person so far. Nothing is learnt, and
    there are no weights. Somebody falls whose head and hips come down by ``drops`` within
    ``window`` steps, and who is on the floor within ``after`` steps: the head less than ``upright``
    above the hips for ``least`` steps, these less than ``legs`` above the lower ankle, and the body
    wider or higher than ``span``: joints that have collapsed are not a body. A fall is shown until
    ``lasting`` steps after that. Who is on the floor for ``lying`` steps lies.
    """

    delay = 0
    exact = True
    drops: Tensor

    def __init__(  # noqa: PLR0913 - the constants of the rule
        self,
        num_classes: int = len(LABELS),
        window: int = 15,
        drops: tuple[float, float] = (2.8, 0.9),
        upright: float = 1.2,
        legs: float = 1.8,
        span: float = 3.0,
        after: int = 22,
        least: int = 4,
        lasting: int = 15,
        lying: int = 15,
    ) -> None:
        super().__init__()
        if num_classes != len(LABELS):
            raise ValueError(f"the rule has {len(LABELS)} labels, not {num_classes}")
        self.num_classes, self.window, self.after = num_classes, window, after
        self.upright, self.legs, self.span = upright, legs, span
        self.least, self.lasting, self.lying = least, lasting, lying
        self.register_buffer("drops", torch.tensor(drops))

    @property
    def receptive_field(self) -> int:
        """Steps that an output depends on at most, but for how long somebody has lain."""
        return self.window + self.after + self.lasting

    def init_state(self, batch_size: int = 1) -> FallState:
        """Return the initial state of a batch of streams."""
        heights = zeros(batch_size, self.window, 2, like=self.drops)
        return FallState(heights, *(zeros(batch_size) for _ in range(4)))

    def warmup(self, state: FallState) -> tuple[bool, ...]:
        """Return for each stream whether its window is not yet full."""
        return tuple(count < self.window for count in state.count.tolist())

    def forward_step(self, x: Tensor, state: FallState) -> OadOutput:
        """Take a frame [B, 1, V, 2] of every stream, return the logits [B, 3]."""
        y = x[:, 0, :, 1]
        here = x.flatten(1).any(1)
        now = y[:, [_HEAD, _HIPS]]
        rows = torch.cat([state.heights[:, 1:], now[:, None]], 1)
        state.heights.copy_(torch.where(here[:, None, None], rows, state.heights))
        here = here.cpu()
        state.count += here
        filled = torch.arange(self.window, 0, -1) <= state.count[:, None]
        known = rows.masked_fill(~filled[..., None].to(x.device), -torch.inf)
        down = ((known.amax(1) - now) >= self.drops).all(1).cpu() & here
        above = y[:, _HEAD] - y[:, _HIPS]
        legs = y[:, _HIPS] - y[:, _ANKLES].amin(1)
        long = (x.amax(2) - x.amin(2)).flatten(1).amax(1) > self.span
        floor = ((above < self.upright) & (legs < self.legs) & long).cpu()
        change = torch.where(floor, 1, -2) * here
        state.low.copy_((state.low + change).clamp(0, 2 * self.lying))
        waited = torch.where(down, self.after, (state.down - 1).clamp(min=0))
        fell = (state.low >= self.least) & (waited > 0)
        state.down.copy_(waited * ~fell)
        state.shown.copy_(torch.where(fell, self.lasting, (state.shown - 1).clamp(min=0)))
        falls, lies = state.shown > 0, state.low >= self.lying
        found = torch.stack([falls, lies & ~falls], 1).to(x)
        return OadOutput(torch.cat([zeros(len(x), 1, like=x), SURE * (2 * found - 1)], 1), None)

    def forward_steps(self, x: Tensor, state: FallState) -> OadOutput:
        """Take T frames [B, T, 1, V, 2] of every stream, return the logits [B, T, 3]."""
        steps = [self.forward_step(frame, state).logits for frame in x.unbind(1)]
        return OadOutput(torch.stack(steps, 1), None)

    def count_macs(self) -> int:
        """Return the comparisons of one step, in place of multiply-accumulates."""
        return 2 * self.window + len(BODY_15.joints)

    dense_macs = property(count_macs)
