"""Rendering of an acting figure in a room: synthetic video with exact labels.

Body parts are capsules with smooth edges, shaded as if round, hidden by furniture in front of
them, and cast a soft shadow on the ground below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from weights.recipes.action.rendering.figure import LABELS, Act, Vector, joints

Colour = tuple[float, float, float]
GAMMA = 1.1  # of the brightness of a rendered image


@dataclass(frozen=True)
class Appearance:
    """Appearance of the figure. ``height`` 1.0 is 1.75 m, ``girth`` widens every part."""

    skin: Colour
    hair: Colour
    shirt: Colour
    trousers: Colour
    shoes: Colour
    height: float = 1.0
    girth: float = 1.0
    sleeves: bool = True
    long_hair: bool = False


@dataclass(frozen=True)
class RenderedScene:
    """Everything that determines a clip."""

    room: Room
    camera: Camera
    look: Appearance
    acts: tuple[Act, ...]
    ground: tuple[tuple[float, float, float, float, float], ...] = field(default=())
    # (x0, y0, x1, y1, height) of surfaces a figure can be above, for the shadow
    others: tuple[RenderedScene, ...] = ()  # of whom only look and acts count

    @property
    def length_s(self) -> float:
        """Length of the script."""
        return sum(act.length_s for act in self.acts)

    def script(self) -> list[tuple[float, float, str]]:
        """Return (start, end, label) of every stretch of one label, in seconds."""
        out: list[tuple[float, float, str]] = []
        start = 0.0
        for act in self.acts:
            if out and out[-1][2] == act.label:
                out[-1] = (out[-1][0], start + act.length_s, act.label)
            else:
                out.append((start, start + act.length_s, act.label))
            start += act.length_s
        return out


def render(
    scene: RenderedScene, rate_hz: float, samples: int = 2, backdrop: Image | None = None
) -> Iterator[tuple[npt.NDArray[np.uint8], str, float]]:
    """Yield (image uint8 [H, W, 3], label, share of the image the figure covers) per frame.

    ``backdrop``: a picture [H, W, 3], 0..1, in place of the room, whose furniture hides nothing.
    """
    empty, depth, flat = cast(scene.room, scene.camera, samples)
    if backdrop is not None:
        empty, depth = backdrop, np.full_like(depth, np.inf)
    for i in range(int(scene.length_s * rate_hz)):
        image, shares = empty.copy(), dict[str, float]()
        for one in (*scene.others, scene):
            act, since_s = _act_at(one, i / rate_hz)
            if act.label != LABELS[0]:  # else nobody is there
                covered = draw(image, depth, flat, one, act.play(since_s)) / depth.size
                shares[act.label] = max(covered, shares.get(act.label, 0.0))
        label = max(shares, key=lambda k: shares[k], default=LABELS[0])
        picture = np.round(np.clip(image, 0, 1) ** (1 / GAMMA) * 255).astype(np.uint8)
        yield picture, label, shares.get(label, 0.0)


def _act_at(scene: RenderedScene, time_s: float) -> tuple[Act, float]:
    """Return the act at a time, the last one after the end, and the time since its begin."""
    begun = 0.0
    for act in scene.acts:
        if time_s < begun + act.length_s or act is scene.acts[-1]:
            break
        begun += act.length_s
    return act, time_s - begun


def draw(
    image: Image, depth: Vector, flat: npt.NDArray[np.bool_], scene: RenderedScene, pose: Vector
) -> float:
    """Draw the figure into ``image`` in place; return the number of pixels it covers."""
    at = joints(pose, scene.look.height)
    parts = _parts(at, scene.look)
    _shadow(image, flat, scene, parts)
    placed = []
    for first, second, radius, end, colour in parts:
        a, b = scene.camera.project(first), scene.camera.project(second)
        if min(a[2], b[2]) > 0.15:
            placed.append((a, b, radius, end, colour))
    placed.sort(key=lambda part: -(part[0][2] + part[1][2]))
    mask = np.zeros(depth.shape)
    light = scene.camera.axes @ np.array([0.3, -0.3, 0.9])
    for a, b, radius, end, colour in placed:
        ra, rb = scene.camera.focal * radius / a[2], scene.camera.focal * end / b[2]
        window = _window(depth.shape, (a, b), max(ra, rb))
        if window is None:
            continue
        distance, along, ox, oy = _capsule(window, a, b, ra, rb)
        size = ra + (rb - ra) * along
        part_depth = a[2] + (b[2] - a[2]) * along - radius
        cover = np.clip(0.5 - distance, 0, 1) * (part_depth < depth[window] + 0.03)
        lit = (ox * light[0] + oy * light[1]) / size
        round_off = np.clip(1 - (ox**2 + oy**2) / size**2, 0, 1)
        shade = 0.66 + 0.3 * np.sqrt(round_off) + 0.16 * np.clip(lit, -1, 1)
        pixels = image[window]
        pixels += cover[..., None] * (np.array(colour) * shade[..., None] - pixels)
        mask[window] = np.maximum(mask[window], cover)
    return float(mask.sum())


def _parts(
    at: dict[str, Vector], look: Appearance
) -> list[tuple[Vector, Vector, float, float, Colour]]:
    """Return the capsules of a body: two ends, two radii (metres) and a colour."""
    g = look.girth * look.height
    up = at["crown"] - at["neck"]
    up = up / max(float(np.linalg.norm(up)), 1e-6)
    face = at["head"] - at["crown"] + 0.04 * up
    face = face / max(float(np.linalg.norm(face)), 1e-6)
    arm = look.shirt if look.sleeves else look.skin
    parts = [
        (at["pelvis"], at["pelvis"] * 0.4 + at["neck"] * 0.6, 0.135 * g, 0.14 * g, look.shirt),
        (at["left hip"], at["left shoulder"], 0.1 * g, 0.085 * g, look.shirt),
        (at["right hip"], at["right shoulder"], 0.1 * g, 0.085 * g, look.shirt),
        (at["left shoulder"], at["right shoulder"], 0.085 * g, 0.085 * g, look.shirt),
        (at["left hip"], at["right hip"], 0.115 * g, 0.115 * g, look.trousers),
        (at["neck"], at["head"], 0.055 * g, 0.055 * g, look.skin),
        (at["head"], at["head"] + 0.03 * face, 0.095 * look.height, 0.09 * look.height, look.skin),
        (
            at["head"] + 0.05 * up - 0.03 * face,
            at["head"] - 0.05 * face - 0.01 * up,
            0.098 * look.height,
            0.09 * look.height,
            look.hair,
        ),
    ]
    if look.long_hair:
        parts.append(
            (
                at["head"] - 0.06 * face,
                at["neck"] - 0.07 * face - 0.05 * up,
                0.08 * look.height,
                0.06 * look.height,
                look.hair,
            )
        )
    for side in ("left ", "right "):
        parts += [
            (at[side + "hip"], at[side + "knee"], 0.085 * g, 0.06 * g, look.trousers),
            (at[side + "knee"], at[side + "ankle"], 0.06 * g, 0.045 * g, look.trousers),
            (at[side + "ankle"], at[side + "toe"], 0.05 * g, 0.04 * g, look.shoes),
            (at[side + "shoulder"], at[side + "elbow"], 0.06 * g, 0.045 * g, look.shirt),
            (at[side + "elbow"], at[side + "hand"], 0.043 * g, 0.035 * g, arm),
            (at[side + "hand"], at[side + "hand"], 0.048 * g, 0.048 * g, look.skin),
        ]
    return parts


def _shadow(
    image: Image,
    flat: npt.NDArray[np.bool_],
    scene: RenderedScene,
    parts: Sequence[tuple[Vector, Vector, float, float, Colour]],
) -> None:
    """Darken the ground below the body, softer and weaker the higher a part is."""
    middle = parts[0][0]
    ground = 0.0
    for x0, y0, x1, y1, height in scene.ground:
        if x0 <= middle[0] <= x1 and y0 <= middle[1] <= y1:
            ground = height
    dark = np.zeros(flat.shape)
    for first, second, radius, end, _ in parts:
        lift = max(0.0, float(first[2] + second[2]) / 2 - ground)
        a, b = (
            scene.camera.project(np.array([p[0] + 0.15 * lift, p[1] + 0.1 * lift, ground]))
            for p in (first, second)
        )
        if min(a[2], b[2]) < 0.3:
            continue
        scale = scene.camera.focal / a[2]
        soft = scale * (0.05 + 0.12 * lift)
        window = _window(flat.shape, (a, b), scale * max(radius, end) + soft)
        if window is None:
            continue
        distance, *_ = _capsule(window, a, b, scale * radius, scale * end)
        cover = np.clip(0.5 - 0.5 * distance / soft, 0, 1) * 0.42 / (1 + 0.8 * lift)
        dark[window] = np.maximum(dark[window], cover)
    image *= 1 - (dark * flat)[..., None]


def _window(
    shape: tuple[int, ...], ends: Sequence[tuple[float, float, float]], margin: float
) -> tuple[slice, slice] | None:
    columns, rows = [e[0] for e in ends], [e[1] for e in ends]
    left, right = int(min(columns) - margin - 1), int(max(columns) + margin + 2)
    top, bottom = int(min(rows) - margin - 1), int(max(rows) + margin + 2)
    left, right = max(left, 0), min(right, shape[1])
    top, bottom = max(top, 0), min(bottom, shape[0])
    return (slice(top, bottom), slice(left, right)) if left < right and top < bottom else None


def _capsule(
    window: tuple[slice, slice],
    a: tuple[float, float, float],
    b: tuple[float, float, float],
    ra: float,
    rb: float,
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return every pixel's coordinates relative to a capsule.

    They are the distance to the capsule's edge (negative inside), the position along its axis,
    0..1, and the offset from the axis.
    """
    x = np.arange(window[1].start, window[1].stop)[None] + 0.5 - a[0]
    y = np.arange(window[0].start, window[0].stop)[:, None] + 0.5 - a[1]
    dx, dy = b[0] - a[0], b[1] - a[1]
    along = np.clip((x * dx + y * dy) / max(dx * dx + dy * dy, 1e-9), 0, 1)
    ox, oy = x - along * dx, y - along * dy
    return np.hypot(ox, oy) - (ra + (rb - ra) * along), along, ox, oy


# Ray casting of a room seen by a fixed camera: its image without people, and its depth map.
#
# Rays are cast once per room, since camera and furniture do not move.


Image = npt.NDArray[np.float64]  # [H, W, 3], 0..1, red green blue


@dataclass(frozen=True)
class Cuboid:
    """A piece of furniture or part of one: two opposite corners (metres) and a colour."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    colour: tuple[float, float, float]


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; ``focal`` is in pixels, the optical axis goes through the centre."""

    at: Vector
    axes: Vector  # rows: right, down, forward
    focal: float
    width: int
    height: int

    @classmethod
    def looking(
        cls, at: Vector, target: Vector, view_deg: float, width: int, height: int, up: Vector
    ) -> Camera:
        """Return a camera at one point looking at another; ``view_deg`` is the horizontal angle."""
        forward = (target - at) / np.linalg.norm(target - at)
        right = np.cross(forward, up)
        right /= np.linalg.norm(right)
        axes = np.stack((right, np.cross(forward, right), forward))
        return cls(at, axes, width / 2 / np.tan(np.radians(view_deg) / 2), width, height)

    def project(self, point: Vector) -> tuple[float, float, float]:
        """Return column, row (pixels) and depth (metres) of a point; depth <= 0 is behind."""
        right, down, depth = self.axes @ (point - self.at)
        scale = self.focal / max(depth, 1e-3)
        return (
            float(self.width / 2 + scale * right),
            float(self.height / 2 + scale * down),
            float(depth),
        )

    def rays(self, samples: int) -> Vector:
        """Return directions [H s, W s, 3] with depth 1 along the axis, s x s samples per pixel."""
        columns = (np.arange(self.width * samples) + 0.5) / samples - self.width / 2
        rows = (np.arange(self.height * samples) + 0.5) / samples - self.height / 2
        flat = np.stack(np.broadcast_arrays(columns[None], rows[:, None], self.focal), axis=-1)
        out: Vector = (flat / self.focal) @ self.axes
        return out


@dataclass(frozen=True)
class Room:
    """Geometry and colours (0..1) of a room.

    The back wall is y = depth, the left wall x = 0; the two other sides are open.
    """

    depth: float
    floor: tuple[float, float, float]
    wall: tuple[float, float, float]
    boxes: tuple[Cuboid, ...]
    plank: float  # width of the floor boards, metres; 0 = a plain floor
    contrast: float  # of boards and speckles
    light: tuple[float, float]  # floor position below the lamp
    falloff: float  # how quickly brightness falls off from there
    seed: int


def cast(room: Room, camera: Camera, samples: int) -> tuple[Image, Vector, npt.NDArray[np.bool_]]:
    """Return the empty room's image [H, W, 3], depth [H, W] and mask of upward-facing surfaces."""
    rays, at = camera.rays(samples), camera.at
    near = np.full(rays.shape[:2], 60.0)
    colour = np.broadcast_to(np.array(room.wall) * 0.8, rays.shape).copy()
    flat = np.zeros(rays.shape[:2], bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 1 / np.where(np.abs(rays) < 1e-9, 1e-9, rays)
    for axis, plane, paint in ((2, 0.0, None), (0, 0.0, 0.92), (1, room.depth, 1.0)):
        t = (plane - at[axis]) * inverse[..., axis]
        hit = (t > 0.05) & (t < near)
        near[hit] = t[hit]
        points = at + t[hit][:, None] * rays[hit]
        flat[hit] = paint is None
        colour[hit] = _floor(room, points) if paint is None else _wall(room, points, paint)
    for box in room.boxes:
        _box(box, rays, inverse, at, near, colour, flat)
    points = at + near[..., None] * rays
    away = np.hypot(points[..., 0] - room.light[0], points[..., 1] - room.light[1])
    colour *= (1 / (1 + room.falloff * away**2))[..., None]
    shape = (camera.height, samples, camera.width, samples)
    half = samples // 2
    return (
        colour.reshape(*shape, 3).mean((1, 3)),
        near.reshape(shape)[:, half, :, half],
        flat.reshape(shape)[:, half, :, half],
    )


def _floor(room: Room, points: Vector) -> Vector:
    x, y = points[:, 0], points[:, 1]
    shade = np.ones(len(points))
    if room.plank:
        row = np.floor(y / room.plank)
        board = np.floor(x / 0.9 + 0.37 * row)
        shade += room.contrast * (_hash(row, board, room.seed) - 0.5)
        seam = np.minimum(y / room.plank - row, 1 - (y / room.plank - row)) * room.plank
        shade -= room.contrast * 0.6 * np.exp(-((seam / 0.006) ** 2))
        shade += room.contrast * 0.2 * np.sin(60 * y + 3 * np.sin(2 * x) + 7 * board)
    else:
        shade += room.contrast * 0.3 * (_hash(np.floor(x * 30), np.floor(y * 30), room.seed) - 0.5)
    for box in room.boxes:
        # Ambient occlusion where floor and furniture meet.
        dx = np.maximum(np.maximum(box.low[0] - x, x - box.high[0]), 0)
        dy = np.maximum(np.maximum(box.low[1] - y, y - box.high[1]), 0)
        if box.low[2] < 0.3:
            shade *= 1 - 0.35 * np.exp(-np.hypot(dx, dy) / 0.12)
    return np.array(room.floor) * shade[:, None]


def _wall(room: Room, points: Vector, paint: float) -> Vector:
    shade = paint * (0.82 + 0.07 * np.clip(points[:, 2], 0, 2.6))
    shade = np.where(points[:, 2] < 0.09, 0.6 * shade, shade)  # skirting board
    return np.array(room.wall) * shade[:, None]


def _box(
    box: Cuboid,
    rays: Vector,
    inverse: Vector,
    at: Vector,
    near: Vector,
    colour: Vector,
    flat: npt.NDArray[np.bool_],
) -> None:
    one, two = (np.array(box.low) - at) * inverse, (np.array(box.high) - at) * inverse
    enter, leave = np.minimum(one, two), np.maximum(one, two)
    t, axis = enter.max(-1), enter.argmax(-1)
    hit = (t < leave.min(-1)) & (t > 0.05) & (t < near)
    near[hit] = t[hit]
    shade = np.array([0.68, 0.8, 1.0])[axis[hit]]
    points = at + t[hit][:, None] * rays[hit]
    shade = shade * (0.97 + 0.03 * np.sin(23 * points[:, 0] + 5 * np.sin(9 * points[:, 1])))
    colour[hit] = np.array(box.colour) * shade[:, None]
    flat[hit] = axis[hit] == 2


def _hash(a: Vector, b: Vector, seed: int) -> Vector:
    value = np.sin(a * 127.1 + b * 311.7 + seed % 1000 * 7.3) * 43758.5453
    return value - np.floor(value)
