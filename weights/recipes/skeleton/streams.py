"""Batches of streams: motions of all sets one after another, drawn for a batch at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from costream.core.layouts import BODY_15
from costream.training.skeleton.motions import Motion
from weights.recipes.skeleton.tokens import CENTRE, PARENTS, SIDES, index_on

MOTIONS = 4  # of a stream at most; then it rests
RAISED = 3  # steps of rest at most after a motion that ends with a raised hand
RAMP = 16  # steps after which an ongoing action should be recognisable
BACKGROUND_WEIGHT = 0.5  # of a step without an action, in the loss
MORE = {"nwucla": 2.0}  # sets that are drawn more often: seen from three sides, learnt the slowest
_ARMS = [k for k, name in enumerate(BODY_15.joints) if "elbow" in name or "wrist" in name]
_NECK, _WRISTS = BODY_15.joints.index("neck"), [5, 8]
_LIMBS = [[4, 5], [7, 8], [10, 11], [13, 14]]  # lower arms and legs


@dataclass(frozen=True)
class Changes:
    """Strengths of the changes of motions; lengths in mean bones (about 0.28 m)."""

    speed: float = 0.35  # of the logarithm, uniform
    warp: float = 0.1  # shift of the middle in time, relative to the length, uniform
    bone: float = 0.12  # of the logarithm of a bone's length, the same left and right
    posture: float = 0.1  # of each bone's end throughout, relative to its other end
    larger: float = 0.45  # of the logarithm: how far a motion goes from its middle pose, uniform
    smaller: float = 0.9  # the same downwards: some people hardly raise a hand to their chest
    uneven: float = 0.2  # of the logarithm: of the same bone throughout, added to the motion's
    turn: float = 1.6  # radians from facing the camera: some are seen from behind
    tilt: float = 0.3  # radians: cameras that are not level, of some more than of others
    jitter: float = 0.06  # of a joint in each step
    shift: float = 0.1  # of a joint throughout
    sway: float = 0.03  # of people at rest; arms ten times as much when they fidget
    slow: float = 0.15  # share of streams from cameras of 5 to 12 pictures a second
    limb: float = 0.25  # share of streams that lose a lower arm or leg for a while
    flicker: float = 0.12  # share of streams whose joints come and go
    legless: float = 0.1  # share of streams of people whose legs are hidden
    away: float = 0.05  # share of streams that lose the person for up to five steps
    mirror: float = 0.25  # probability, if the label has a mirrored counterpart
    guessed: float = 0.35  # share of streams of joints in space around the hips, from pictures
    depth: float = 0.3  # of such a joint, how far it sways towards the camera
    above: float = 0.6  # radians that such a camera looks down at most


@dataclass(frozen=True)
class StreamBatch:
    """Streams: positions [B, T, V, 3], seen [B, T, V], labels int64 and weights [B, T]."""

    joints: Tensor
    seen: Tensor
    labels: Tensor
    weights: Tensor


class StreamBatches:
    """Draws batches of streams from motions; label 0 is the background between them.

    Motions of a label and of a set are drawn equally often, sets of a label by the root of their
    number. ``resting``: labels of what people do while they rest after the motions of a label, such
    as sitting; ``"< stand up"``: before them. ``mirrored``: labels whose mirrored action is called
    otherwise, or None for those that are not mirrored. Streams are made on ``device``.
    """

    def __init__(
        self,
        motions: Sequence[Motion],
        labels: Sequence[str],
        mirrored: Mapping[str, str | None],
        changes: Changes | None = None,
        device: torch.device | str = "cpu",
        resting: Mapping[str, str] | None = None,
    ) -> None:
        self._changes = Changes() if changes is None else changes
        filled = [facing(m.joints[:, 0]) for m in motions]
        self._device = torch.device(device)
        self._x = self._held(np.concatenate([x for x, _ in filled]))
        self._seen = self._held(np.concatenate([seen for _, seen in filled]))
        self._length = self._held([len(x) for x, _ in filled])
        self._start = self._length.cumsum(0) - self._length
        place = {label: k for k, label in enumerate(labels)}
        # Nobody rests with a raised hand: of the first and the last pose of each motion.
        self._calm = self._held(np.stack([_calm(x[[0, -1]]) for x, _ in filled]))
        # Poses around which motions get smaller or larger: their first one, and their mean.
        limbs = [_limbs(torch.from_numpy(x)) for x, _ in filled]
        middles = torch.stack([torch.stack((x[0], x.mean(0))) for x in limbs])
        self._middles = middles.to(self._device)
        self._label = self._held([place[m.label] for m in motions])
        resting = resting or {}
        after, before = (
            [place[resting[name]] if (name := way + label) in resting else 0 for label in labels]
            for way in ("", "< ")
        )
        self._rests = self._held([after, before])  # [2, K]
        twins = [mirrored.get(m.label, m.label) for m in motions]
        self._twin = self._held([-1 if t is None else place[t] for t in twins])
        cells = [(m.label, m.name.partition(" ")[0]) for m in motions]
        sizes, sets = Counter(cells), Counter(label for label, _ in set(cells))
        self._chance = self._held(
            [MORE.get(c[1], 1.0) / sizes[c] / math.sqrt(sets[c[0]]) for c in cells]
        )
        self._other = self._held(list(BODY_15.mirrored))
        self._above = self._held([_line(joint) for joint in range(len(PARENTS))])  # [V, V]
        lost = [[joint in limb for joint in range(len(PARENTS))] for limb in _LIMBS]
        self._limbs = self._held(lost)  # [limbs, V]
        self._arms = self._held([joint in _ARMS for joint in range(len(PARENTS))])
        self._flip = self._held([-1.0, 1.0, 1.0])

    def _held(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self._device)

    def draw(self, count: int, steps: int, generator: torch.Generator) -> StreamBatch:
        """Return ``count`` streams of ``steps`` steps; the generator is one of the device."""
        c, chance = self._changes, _Chance(count, generator)
        chosen = torch.multinomial(
            self._chance, count * MOTIONS, replacement=True, generator=generator
        ).view(count, MOTIONS)
        whole = self._length[chosen]
        first = (whole * chance(MOTIONS) * (chance(MOTIONS) < 0.25) / 3).long()
        speed = (c.speed * (2 * chance(MOTIONS) - 1)).exp()
        taken = ((whole - first) / speed).round().clamp(min=4).long()
        rest, glide = self._gaps(chance, steps)
        before = torch.cat((self._calm[chosen[:, :1], 0], self._calm[chosen[:, :-1], 1]), 1)
        rest = torch.where(before, rest, rest.clamp(max=RAISED))
        ends = torch.stack((rest + glide, taken), 2).flatten(1).cumsum(1)
        rate = torch.where(chance(1) < c.slow, 1 / 3 + chance(1) * 0.47, 1.0)
        true = torch.arange(steps, device=self._device).expand(count, steps)
        held = (torch.floor(true * rate + 1e-4) / rate).ceil().clamp(max=steps - 1).long()
        source = _Sources(held, ends, chosen, first, rest, glide, taken, whole)
        warp = c.warp * (2 * chance(MOTIONS) - 1)
        one, two, share, moving = source.frames(warp)
        flip = (chance(MOTIONS) < c.mirror) & (self._twin[chosen] >= 0)
        turn = 0.3 * chance.normal(MOTIONS) + c.turn * chance.normal(1)
        ways = self._ways(chosen, first, whole, flip, turn)
        bones = (c.bone * chance.normal(len(PARENTS))).exp()
        bones = (bones * bones[:, self._other]).sqrt()
        posture = c.posture * chance(1)[..., None] * chance.normal(len(PARENTS), 3)
        amplitude = (c.larger + c.smaller) * chance(MOTIONS, 1) - c.smaller
        amplitude = (amplitude + c.uneven * chance.normal(MOTIONS, len(PARENTS))).exp()
        # Half of those that begin at rest stay nearer to that.
        around = torch.where(self._calm[chosen, 0] & (chance(MOTIONS) < 0.5), 0, 1)
        body = (bones, posture, amplitude, self._middles[chosen, around])
        x = torch.lerp(
            self._placed(one, chosen, flip, turn, ways, body),
            self._placed(two, chosen, flip, turn, ways, body),
            share[..., None, None],
        )
        x = self._disturbed(x, moving, held, chance)
        seen = self._see(one, chosen, flip) & self._see(two, chosen, flip)
        seen = self._lose(seen, chance, steps)
        label = torch.where(flip, self._twin[chosen], self._label[chosen])
        kind = torch.searchsorted(ends, true.contiguous(), right=True)
        number = (kind // 2).clamp(max=MOTIONS - 1)
        acting = (kind % 2 == 1) & (kind < 2 * MOTIONS)
        starts = torch.cat((torch.zeros_like(ends[:, :1]), ends[:, :-1]), 1)
        waited = true - starts.gather(1, kind.clamp(max=2 * MOTIONS - 1))
        labels = torch.where(acting, label.gather(1, number), self._resting(label, number, kind))
        moving_on = (kind % 2 == 0) & (kind < 2 * MOTIONS) & (waited >= rest.gather(1, number))
        between = moving_on & (labels > 0)  # from a chair, for example
        labels = torch.where(between, 0, labels)
        since = true - (ends - taken.repeat_interleave(2, 1))[:, 1::2].gather(1, number)
        ramp = ((since + 1) / taken.gather(1, number).clamp(max=RAMP)).clamp(0, 1)
        weights = torch.where(acting, ramp, BACKGROUND_WEIGHT) * ~between
        return StreamBatch(x * seen[..., None], seen, labels, weights)

    def _resting(self, label: Tensor, number: Tensor, kind: Tensor) -> Tensor:
        """Return the labels [B, T] of the rests before a motion or after the last one."""
        over = kind >= 2 * MOTIONS
        last = torch.where(over, number, (number - 1).clamp(min=0))
        after = self._rests[0][label.gather(1, last)]
        return torch.where((number == 0) & ~over, self._rests[1][label[:, :1]], after)

    def _gaps(self, chance: _Chance, steps: int) -> tuple[Tensor, Tensor]:
        """Return the steps of rest and of the way to the next pose before each motion."""
        kind = chance(MOTIONS)
        glide = (2 + 10 * chance(MOTIONS)).long() * (kind > 0.25)
        rest = (4 + 36 * chance(MOTIONS)).long() * (kind > 0.55)
        # Half of the streams begin with a motion, some rest throughout.
        begins, idle = chance(1) < 0.5, chance(1) < 0.06
        head = torch.arange(MOTIONS, device=self._device) == 0
        nothing = head & begins & ~idle
        rest = torch.where(head & idle, steps, torch.where(nothing, 0, rest))
        return rest, torch.where(nothing, 0, glide)

    def _rows(self, frame: tuple[Tensor, Tensor], chosen: Tensor) -> Tensor:
        number, place = frame
        return self._start[chosen].gather(1, number) + place

    def _see(self, frame: tuple[Tensor, Tensor], chosen: Tensor, flip: Tensor) -> Tensor:
        seen = self._seen[self._rows(frame, chosen)]
        return torch.where(flip.gather(1, frame[0])[..., None], seen[..., self._other], seen)

    def _placed(
        self,
        frame: tuple[Tensor, Tensor],
        chosen: Tensor,
        flip: Tensor,
        turn: Tensor,
        ways: Tensor,
        body: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> Tensor:
        """Return the poses [B, T, V, 3] of these frames, of this body, where the stream is.

        ``body``: relative lengths of bones [B, V], shifts of their ends [B, V, 3], how far each of
        them goes from the middle pose of a motion [B, MOTIONS, V], and that pose's bones
        [B, MOTIONS, V, 3].
        """
        number, (bones, posture, amplitude, middle) = frame[0], body
        x = self._x[self._rows(frame, chosen)]
        rows = torch.arange(len(x), device=self._device)[:, None]
        limbs = torch.lerp(middle[rows, number], _limbs(x), amplitude[rows, number][..., None])
        limbs[:, :, CENTRE] = x[:, :, CENTRE]
        limbs = _turned(self._flipped(limbs, flip.gather(1, number)), turn.gather(1, number))
        hips = limbs[:, :, CENTRE : CENTRE + 1]
        placed = hips + self._above @ (limbs * bones[:, None, :, None] + posture[:, None])
        return placed + ways.gather(1, number[..., None].expand(-1, -1, 3))[:, :, None]

    def _flipped(self, x: Tensor, flip: Tensor) -> Tensor:
        other = x[..., self._other, :] * self._flip
        return torch.where(flip[..., None, None], other, x)

    def _ways(
        self, chosen: Tensor, first: Tensor, whole: Tensor, flip: Tensor, turn: Tensor
    ) -> Tensor:
        """Return the shift [B, MOTIONS, 3] with which motions begin where the last one ended."""
        start = self._start[chosen]
        begin, end = (
            _turned(self._flipped(self._x[start + place], flip), turn)[:, :, CENTRE]
            for place in (first, whole - 1)
        )
        ways = -begin
        ways[:, 1:] += (end - begin).cumsum(1)[:, :-1]
        return ways

    def _disturbed(self, x: Tensor, moving: Tensor, time: Tensor, chance: _Chance) -> Tensor:
        """Return poses with sway and fidgeting at rest, a tilted camera and a tracker's noise."""
        c, joints = self._changes, x.shape[2]
        size = c.sway * (0.3 + chance(1)) * torch.where(self._arms & (chance(1) < 0.3), 10.0, 1.0)
        pace, phase = 0.08 + 0.5 * chance(joints, 3), 6.3 * chance(joints, 3)
        wave = torch.sin(time[:, :, None, None] * pace[:, None] + phase[:, None])
        still = _eased(~moving)[..., None, None]
        swing = wave * (size[..., None] * chance.normal(joints, 3))[:, None]
        x = x + still * (swing - swing[:, :1])
        guessed = chance(1) < c.guessed
        nod, roll = (c.tilt * chance(1) * chance.normal(2)).unbind(1)
        nod = nod - (c.above * chance(1) * guessed)[:, 0]
        a, up, b = x.unbind(-1)
        nod, roll = nod[:, None, None], roll[:, None, None]
        a, up = a * roll.cos() - up * roll.sin(), a * roll.sin() + up * roll.cos()
        up, b = up * nod.cos() - b * nod.sin(), up * nod.sin() + b * nod.cos()
        pace, phase = 0.05 + 0.5 * chance(joints), 6.3 * chance(joints)
        sway = torch.sin(time[:, :, None] * pace[:, None] + phase[:, None])
        b = b + (c.depth * chance(1) * guessed * chance.normal(joints))[:, None] * sway
        x = torch.stack((a, up, b), -1)
        x = x - x[:, :, CENTRE : CENTRE + 1] * guessed[..., None, None]
        fixed = c.shift * chance(1)[..., None] * chance.normal(joints, 3)
        shaking = c.jitter * chance(1)[..., None] ** 2
        return x + fixed[:, None] + shaking[:, None] * chance.normal(*x.shape[1:])

    def _lose(self, seen: Tensor, chance: _Chance, steps: int) -> Tensor:
        """Return which joints are seen after a tracker has lost some."""
        c, limb, time = self._changes, self._limbs, torch.arange(steps, device=self._device)
        which = (len(_LIMBS) * chance(1)[:, 0]).long()
        begin, long = chance(1) * steps, 2 + chance(1) * 20
        hidden = (time >= begin) & (time < begin + long) & (chance(1) < c.limb)
        seen = seen & ~(hidden[..., None] & limb[which][:, None])
        rate = 0.3 * chance(1) * (chance(1) < c.flicker)
        seen &= chance(steps, seen.shape[2]) >= rate[..., None]
        legs = (limb[2] | limb[3]) & (chance(1) < c.legless)
        seen &= ~legs[:, None]
        begin = 1 + chance(1) * steps
        gone = (time >= begin) & (time < begin + 5 * chance(1)) & (chance(1) < c.away)
        return seen & ~gone[..., None]


class MixedStreams:
    """Draws a share of each batch, one stream at least, from other streams."""

    def __init__(self, streams: StreamBatches, others: StreamBatches, share: float) -> None:
        self._streams, self._others, self._share = streams, others, share

    def draw(self, count: int, steps: int, generator: torch.Generator) -> StreamBatch:
        """Return ``count`` streams of ``steps`` steps; the generator is one of the device."""
        few = max(1, round(self._share * count))
        some = self._streams.draw(count - few, steps, generator)
        more = self._others.draw(few, steps, generator)
        return StreamBatch(
            *(torch.cat((getattr(some, f.name), getattr(more, f.name))) for f in fields(some))
        )


class _Chance:
    """Random numbers for each stream of a batch."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator

    def __call__(self, *shape: int) -> Tensor:
        return self._drawn(torch.rand, shape)

    def normal(self, *shape: int) -> Tensor:
        return self._drawn(torch.randn, shape)

    def _drawn(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        own = self._generator
        return draw(self._count, *shape, generator=own, device=own.device)


@dataclass(frozen=True)
class _Sources:
    """Which frames of which motions a stream shows: all but ``held`` [B, T] are [B, MOTIONS]."""

    held: Tensor
    ends: Tensor  # [B, 2 MOTIONS], of each gap and each motion
    chosen: Tensor
    first: Tensor
    rest: Tensor
    glide: Tensor
    taken: Tensor
    whole: Tensor

    def frames(
        self, warp: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor]:
        """Return two frames of each step, the share of the second, and whether there is an action.

        A frame is its motion and the place in it.
        """
        kind = torch.searchsorted(self.ends, self.held, right=True)
        over = kind >= 2 * MOTIONS
        number = (kind // 2).clamp(max=MOTIONS - 1)
        before = (number - 1).clamp(min=0)
        starts = torch.cat((torch.zeros_like(self.ends[:, :1]), self.ends[:, :-1]), 1)
        since = self.held - starts.gather(1, kind.clamp(max=2 * MOTIONS - 1))
        first, last = (v.gather(1, number) for v in (self.first, self.whole - 1))
        share = (since / (self.taken.gather(1, number) - 1).clamp(min=1)).clamp(0, 1)
        share = (share + warp.gather(1, number) * torch.sin(math.pi * share)).clamp(0, 1)
        place = first + share * (last - first)
        low = place.floor().long()
        acting = (kind % 2 == 1) & ~over
        rest, glide = self.rest.gather(1, number), self.glide.gather(1, number)
        way = ((since - rest + 1) / (glide + 1)).clamp(0, 1)
        from_first = number == 0  # before the first motion there is only its first pose
        left = torch.where(from_first, first, (self.whole - 1).gather(1, before))
        end = torch.where(over, last, left)
        one = (
            torch.where(acting | over, number, before),
            torch.where(acting, low, end),
        )
        two = (number, torch.where(acting, torch.minimum(low + 1, last), first))
        two = (two[0], torch.where(over, last, two[1]))
        part = torch.where(acting, place - low, 0.5 - 0.5 * torch.cos(math.pi * way))
        return one, two, part, acting


def _line(joint: int) -> list[float]:
    """Return which bones lead from the hips to a joint, [V]."""
    out = [0.0] * len(PARENTS)
    while PARENTS[joint] != joint:
        out[joint] = 1.0
        joint = PARENTS[joint]
    return out


def _limbs(x: Tensor) -> Tensor:
    """Return for poses [..., V, 3] where each joint is from the one that its bone begins at."""
    return x - x[..., index_on(PARENTS, x.device), :]


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Return poses [..., V, 3] turned about the vertical by angles [...]."""
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    a, up, b = x.unbind(-1)
    return torch.stack((cos * a + sin * b, up, cos * b - sin * a), -1)


def _calm(x: np.ndarray) -> np.ndarray:
    """Return for poses [N, V, 3] whether both wrists are lower than half of the trunk."""
    hips, neck = x[:, CENTRE, 1], x[:, _NECK, 1]
    calm: np.ndarray = (x[:, _WRISTS, 1] < ((hips + neck) / 2)[:, None]).all(1)
    return calm


def _eased(on: Tensor) -> Tensor:
    """Return 0 to 1, rising over a few steps after ``on`` [B, T] becomes true."""
    rows = on.float()[:, None]
    return torch.nn.functional.avg_pool1d(rows, 7, 1, 3, count_include_pad=False)[:, 0] * rows[:, 0]


def facing(joints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [T, V, 3], facing one way at first, and seen [T, V].

    Joints that are not seen are where they were seen last, or first.
    """
    x, seen = joints[..., :-1], joints[..., -1] > 0
    place = np.where(seen, np.arange(len(x))[:, None], -1)
    last = np.maximum.accumulate(place, 0)
    last = np.where(last < 0, seen.argmax(0), last)
    x = np.take_along_axis(x, last[..., None], 0)
    across = sum((x[:5, right] - x[:5, left])[:, 0::2].mean(0) for left, right in SIDES)
    cos, sin = np.asarray(across) / max(float(np.hypot(*np.asarray(across))), 1e-6)
    a, up, b = np.moveaxis(x, -1, 0)
    turned = np.stack((cos * a + sin * b, up, cos * b - sin * a), -1)
    return turned.astype(np.float32), seen
