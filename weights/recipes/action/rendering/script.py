"""Scripts of a figure: consecutive actions, each starting where the last one ended."""

from __future__ import annotations

import math

import numpy as np

from weights.recipes.action.rendering.figure import (
    ARMS,
    AZIMUTH,
    ELBOW,
    HIP,
    KNEE,
    SHOULDER,
    TILT,
    TWIST,
    Act,
    Movement,
    X,
    Y,
    Z,
    lying,
    move,
    pose,
    seated,
    standing,
    stay,
    walk,
)


class Script:
    """A sequence of acts for a room with a seat, a bed and free floor.

    ``seat`` and ``bed`` are (x, y, height, yaw): the place of the seat or of the middle of the
    lying body, and the direction of the face (seat) or of the feet (bed).
    """

    def __init__(
        self,
        rng: np.random.Generator,
        seat: tuple[float, float, float, float],
        bed: tuple[float, float, float, float],
        start: tuple[float, float],
    ) -> None:
        self.rng = rng
        self.seat, self.bed = seat, bed
        self.acts: list[Act] = []
        self.now = standing(*start, rng.uniform(-3, 3))

    def add(self, act: Act) -> None:
        """Append an act; the next one begins where it ends."""
        self.acts.append(act)
        self.now = act.end()

    def _seed(self) -> int:
        return int(self.rng.integers(1 << 30))

    def away(self, length_s: float) -> None:
        """Leave the room empty."""
        here = self.now.copy()
        self.add(Act("background", length_s, lambda _: here))

    def walk(self, x: float, y: float, speed: float = 0.9) -> None:
        """Walk straight to a place."""
        self.add(walk(self.now, (x, y), speed))

    def stand(self, length_s: float) -> None:
        """Stand; standing counts as walking."""
        self.add(stay("walk", self.now, length_s, self._seed()))

    def perform(self, movement: Movement) -> None:
        """Perform a movement at the current place."""
        self.add(movement.act(self.now, self.rng))

    def sit_down(self, length_s: float, on_bed: bool = False) -> None:
        """Walk to the seat (or the side of the bed), turn and sit down."""
        x, y, height, yaw = self._edge() if on_bed else self.seat
        front = (x + 0.38 * math.cos(yaw), y + 0.38 * math.sin(yaw))
        if math.hypot(front[0] - self.now[X], front[1] - self.now[Y]) > 0.3:
            self.walk(*front, self.rng.uniform(0.6, 1.2))
        ready = standing(*front, yaw)
        bent = pose(
            0.5 * (front[0] + x),
            0.5 * (front[1] + y),
            0.5 * (1.02 + height),
            yaw,
            0.55,
            hips=1.3,
            knees=0.9,
            shoulders=0.5,
        )
        down = seated(x, y, yaw, height)
        u = length_s
        self.add(move("sit down", [(0.3 * u, ready), (0.7 * u, bent), (u, down)], self.now))

    def sit(self, length_s: float) -> None:
        """Keep sitting."""
        self.add(stay("sit", self.now, length_s, self._seed()))

    def stand_up(self, length_s: float) -> None:
        """Get up from a seat, the bed or the floor."""
        now, keys = self.now, []
        if abs(now[TILT]) > 1.0:  # lying: sit up, crouch, rise
            side = now[AZIMUTH] + (math.pi if now[TILT] > 0 else 0)
            x, y = now[X] + 0.1 * math.cos(side), now[Y] + 0.1 * math.sin(side)
            up = pose(x, y, now[Z], side, 0.25, hips=1.5, knees=0.7, shoulders=0.2)
            keys.append((0.35 * length_s, up))
            if now[Z] > 0.4:
                edge = self._edge()
                keys.append((0.6 * length_s, seated(edge[0], edge[1], edge[3], edge[2])))
            else:
                crouch = pose(x, y, 0.35, side, 0.7, hips=1.9, knees=2.1, shoulders=0.7)
                keys.append((0.65 * length_s, crouch))
        last = keys[-1][1] if keys else now
        yaw = last[AZIMUTH]
        step = 0.38 if last[Z] > 0.2 else 0.1
        goal = (last[X] + step * math.cos(yaw), last[Y] + step * math.sin(yaw))
        rise = pose(
            0.4 * last[X] + 0.6 * goal[0],
            0.4 * last[Y] + 0.6 * goal[1],
            0.6 * last[Z] + 0.4 * 0.92,
            yaw,
            0.6,
            hips=1.3,
            knees=1.0,
            shoulders=0.4,
        )
        begin = keys[-1][0] if keys else 0.0
        keys += [(begin + 0.5 * (length_s - begin), rise), (length_s, standing(*goal, yaw))]
        self.add(move("stand up", keys, now))

    def lie(self, down_s: float, length_s: float) -> None:
        """Walk to the bed, lie down and keep lying, at times turning over."""
        edge = self._edge()
        front = (edge[0] + 0.38 * math.cos(edge[3]), edge[1] + 0.38 * math.sin(edge[3]))
        if math.hypot(front[0] - self.now[X], front[1] - self.now[Y]) > 0.3:
            self.walk(*front, self.rng.uniform(0.6, 1.2))
        x, y, height, feet = self.bed
        twist = float(self.rng.choice([0.0, 0.0, 1.3, -1.3]))
        half = pose(
            0.5 * (x + edge[0]),
            0.5 * (y + edge[1]),
            height + 0.11,
            feet,
            -0.8,
            hips=0.9,
            knees=0.6,
            elbows=0.6,
        )
        keys = [
            (0.2 * down_s, standing(*front, edge[3])),
            (0.5 * down_s, seated(edge[0], edge[1], edge[3], height)),
            (0.75 * down_s, half),
            (down_s, lying(x, y, height, feet, twist)),
        ]
        self.add(move("lie", keys, self.now))
        self.add(stay("lie", self.now, 0.6 * length_s, self._seed()))
        if length_s > 4 and self.rng.random() < 0.5:
            turned = lying(x, y, height, feet, 1.3 - 1.3 * np.sign(twist) if twist else -1.3)
            self.add(move("lie", [(1.2, turned)], self.now))
        self.add(stay("lie", self.now, 0.4 * length_s, self._seed()))

    def fall(self, length_s: float, still_s: float, direction: float) -> None:
        """Fall in this direction (0: forwards) and stay on the ground with random limb angles."""
        rng, now = self.rng, self.now
        way = now[AZIMUTH] + direction
        begin = now.copy()
        begin[AZIMUTH], begin[TWIST] = way, -direction
        down = begin.copy()
        down[X] += 0.8 * math.cos(way)
        down[Y] += 0.8 * math.sin(way)
        down[Z], down[TILT] = self._surface(down[X], down[Y]) + 0.13, math.pi / 2
        for k in (HIP, HIP + 1, KNEE, KNEE + 1, ELBOW, ELBOW + 1):
            down[k] = rng.uniform(0, 0.9)
        down[SHOULDER : SHOULDER + 2] = rng.uniform(0.2, 2.6, 2)
        down[ARMS] = rng.uniform(0.2, 0.8)
        tumble = move("fall", [(length_s, down)], begin, sudden=True)
        self.add(tumble)
        if rng.random() < 0.5:  # roll a little after the impact
            rolled = down.copy()
            rolled[TWIST] += rng.uniform(-0.5, 0.5)
            self.add(move("fall", [(0.6, rolled)], self.now))
        self.add(stay("fall", self.now, still_s, self._seed()))

    def _edge(self) -> tuple[float, float, float, float]:
        """Return the seat on the side of the bed that faces the front of the room."""
        x, y, height, _ = self.bed
        return x, y - 0.3, height, -math.pi / 2

    def _surface(self, x: float, y: float) -> float:
        bx, by, height, _ = self.bed
        over = height < 0.2 and abs(x - bx) < 1.0 and abs(y - by) < 0.6
        return height if over else 0.0
