"""Ray casting of a room seen by a fixed camera: its image without people, and its depth map.

Rays are cast once per room, since camera and furniture do not move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
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
