"""Input of the network for complete clips of one person: as ``JointStreams`` returns it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from costream.core.layouts import BODY_15

CENTRE = BODY_15.centre
PARENTS = tuple(dict(BODY_15.bones).get(joint, joint) for joint in range(len(BODY_15.joints)))
CHILDREN = tuple(child for child, _ in BODY_15.bones)
ABOVE = tuple(parent for _, parent in BODY_15.bones)
SIDES = [
    (BODY_15.joints.index(f"left {part}"), BODY_15.joints.index(f"right {part}"))
    for part in ("shoulder", "hip")
]
_SMALLEST = 1e-4


@cache
def index_on(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Return places as a tensor on a device, which has to wait for a list."""
    return torch.tensor(places, device=device)


def body_tokens(x: Tensor, seen: Tensor, memory: int = 30) -> Tensor:
    """Return tokens [B, T, 1, V, 3 A]: joint, bone and motion of positions [B, T, V, A].

    ``seen``: bool [B, T, V]. The same as ``JointStreams`` for body-15, one person, normalise
    "body" with this memory of origin and heading, and missing "hold", as long as nobody is out of
    sight for more steps than its patience.
    """
    axes = x.shape[-1]
    x = x * seen[..., None]
    here = seen.any(-1)
    hips, across, known = x[:, :, CENTRE], x.new_zeros(*x.shape[:2], 2), torch.zeros_like(here)
    if axes == 3:
        for left, right in SIDES:
            both = seen[:, :, left] & seen[:, :, right]
            across = across + (x[:, :, right] - x[:, :, left])[..., 0::2] * both[..., None]
            known = known | both
    children, above = (index_on(ends, x.device) for ends in (CHILDREN, ABOVE))
    both = seen[:, :, children] & seen[:, :, above]
    lengths = (x[:, :, children] - x[:, :, above]).norm(dim=-1) * both
    length = lengths.sum(-1, keepdim=True) / both.sum(-1, keepdim=True).clamp(min=1)
    valid = torch.stack((seen[:, :, CENTRE], length[..., 0] > _SMALLEST, known), -1).float()
    values = torch.cat((hips, length, across), -1)
    counts = valid.cumsum(1)
    counts[..., 0::2].clamp_(max=memory)
    shares = valid / counts.clamp(min=1)
    shares = shares[..., index_on((*[0] * axes, 1, 2, 2), x.device)]
    mean, means = torch.zeros_like(values[:, 0]), []
    for value, share in zip(values.unbind(1), shares.unbind(1), strict=True):
        mean = torch.lerp(mean, value, share)
        means.append(mean)
    frame = torch.stack(means, 1)
    unit = frame[..., axes : axes + 1]
    placed = (x - frame[..., None, :axes]) / torch.where(unit > 0, unit, 1.0)[..., None]
    if axes == 3:
        placed = _turned(placed, frame[..., axes + 1 :])
    here = here & (valid[..., 0].cumsum(1) > 0)
    return _streams(placed, seen & here[..., None], here)


def _turned(x: Tensor, heading: Tensor) -> Tensor:
    size = heading.norm(dim=-1)
    sure = size > _SMALLEST
    cos, sin = (
        torch.where(sure, heading[..., k] / size.clamp(min=_SMALLEST), 1.0 - k)[..., None]
        for k in (0, 1)
    )
    a, up, b = x.unbind(-1)
    return torch.stack((cos * a + sin * b, up, cos * b - sin * a), -1)


def _streams(placed: Tensor, seen: Tensor, here: Tensor) -> Tensor:
    """Return joint, bone and motion; joints that are not seen stay where they were."""
    steps = torch.arange(placed.shape[1], device=placed.device)[:, None]
    last = torch.where(seen, steps, -1).cummax(1).values
    gone = torch.where(here, -1, steps[:, 0]).cummax(1).values
    has = here[..., None] & (last > gone[..., None])
    index = last.clamp(min=0)[..., None].expand_as(placed)
    joint = placed.gather(1, index) * has[..., None]
    parents = index_on(PARENTS, placed.device)
    both = has & has[:, :, parents]
    bone = (joint - joint[:, :, parents]) * both[..., None]
    motion = torch.zeros_like(joint)
    moved = (has[:, 1:] & has[:, :-1])[..., None]
    motion[:, 1:] = (joint[:, 1:] - joint[:, :-1]) * moved
    return torch.cat((joint, bone, motion), -1)[:, :, None]
