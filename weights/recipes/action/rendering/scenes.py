"""Labelled video clips in memory, and rendering of synthetic ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from weights.recipes.action.rendering.figure import AZIMUTH, LABELS, Act, Movement, X, Y
from weights.recipes.action.rendering.render import (
    GAMMA,
    Appearance,
    Camera,
    Colour,
    Cuboid,
    Image,
    RenderedScene,
    Room,
    render,
)
from weights.recipes.action.rendering.script import Script

# Share of the image that a visible figure covers at least.
VISIBLE = 0.002
_PASSING = 0.35  # share of scenes before pictures in which people only walk by


@dataclass(frozen=True)
class LabelledClip:
    """A piece of labelled video at the model's rate."""

    name: str
    frames: npt.NDArray[np.uint8]  # [T, 3, H, W], red green blue
    labels: npt.NDArray[np.int64]  # [T], class index, UNSCORED where unknown
    blur_s: float  # time uncertainty of the labels
    overhead: bool = True  # ceiling view: any rotation is plausible
    rendered: bool = False  # the first frame is empty; what differs from it is the figure
    target: tuple[float, ...] | None = None  # shares of the labels, where ``labels`` are not known


def rendered_clip(
    scene: RenderedScene,
    rate_hz: float,
    name: str,
    classes: Sequence[str] = LABELS,
    backdrop: Image | None = None,
) -> LabelledClip:
    """Render one scene; frames without a visible figure are background."""
    frames, labels = [], []
    for picture, label, share in render(scene, rate_hz, backdrop=backdrop):
        frames.append(picture.transpose(2, 0, 1))
        labels.append(classes.index(label if share >= VISIBLE else "background"))
    overhead = bool(scene.camera.axes[2, 2] < -0.85)
    return LabelledClip(name, np.stack(frames), np.array(labels), 0.2, overhead, rendered=True)


def rendered_clips(
    count: int,
    seed: int,
    rate_hz: float,
    size: tuple[int, int],
    movements: Sequence[Movement] = (),
) -> list[LabelledClip]:
    """Render random scenes of 40 s or more; ``size`` is width and height.

    ``movements`` are performed in them; their classes follow the labels.
    """
    rng = np.random.default_rng(seed)
    classes = (*LABELS, *(movement.name for movement in movements))
    bar = tqdm(range(count), desc="rendering", file=sys.stderr, disable=None, leave=False)
    scenes = (random_scene(rng, *size, movements) for _ in bar)
    return [rendered_clip(s, rate_hz, f"rendered {k}", classes) for k, s in enumerate(scenes)]


def clips_before(
    pictures: Sequence[npt.NDArray[np.uint8]], seed: int, rate_hz: float, size: tuple[int, int]
) -> list[LabelledClip]:
    """Render a scene before each of these pictures, uint8 [3, h, w], seen from anywhere.

    In one of three, up to four people do no more than walk by.
    """
    bar = tqdm(pictures, desc="rendering", file=sys.stderr, disable=None, leave=False)
    out = []
    for k, picture in enumerate(bar):
        rng = np.random.default_rng([seed, k])
        scene = random_scene(rng, *size)
        scene = replace(scene, camera=_view(rng, *size))
        if rng.random() < _PASSING:
            acts = [_walk_by(rng) for _ in range(int(rng.integers(1, 5)))]
            walkers = [replace(scene, look=random_look(rng), acts=act) for act in acts]
            scene = replace(walkers[0], others=tuple(walkers[1:]))
        backdrop = (picture[:, : size[1], : size[0]].transpose(1, 2, 0) / 255) ** GAMMA
        out.append(rendered_clip(scene, rate_hz, f"before {k}", backdrop=backdrop))
    return out


def _view(rng: np.random.Generator, width: int, height: int) -> Camera:
    """Return a camera at any height of a room or a street, near or far."""
    around, away = rng.uniform(-0.5, 1.2), rng.uniform(2.2, 7.0)
    target = np.array([rng.uniform(1.6, 2.4), rng.uniform(1.4, 2.4), rng.uniform(0.4, 1.1)])
    at = target + away * np.array([math.sin(around), -math.cos(around), 0.0])
    at[2] = rng.uniform(0.8, 3.4)
    tilt = UP + np.array([*rng.normal(0, 0.03, 2), 0])
    return Camera.looking(at, target, rng.uniform(42, 80), width, height, tilt)


def _walk_by(rng: np.random.Generator) -> tuple[Act, ...]:
    """Return the acts of somebody who crosses the view again and again, or comes near."""
    side = rng.choice([-1.0, 1.0])
    start = (2 + side * rng.uniform(3, 7), rng.uniform(-0.5, 4))
    script = Script(rng, (0, 0, 0.45, 0), (0, 0, 0.4, 0), start)
    script.away(rng.uniform(0, 5))
    while sum(act.length_s for act in script.acts) < 40:
        side = -side
        if rng.random() < 0.3:
            script.walk(rng.uniform(1, 3), rng.uniform(0, 4), rng.uniform(0.6, 1.6))
            script.stand(rng.uniform(0.5, 4))
        script.walk(2 + side * rng.uniform(3, 7), rng.uniform(-0.5, 4), rng.uniform(0.6, 2.2))
        script.away(rng.uniform(0, 4))
    return tuple(script.acts)


UP = np.array([0.0, 0.0, 1.0])


def random_scene(
    rng: np.random.Generator,
    width: int = 160,
    height: int = 120,
    movements: Sequence[Movement] = (),
) -> RenderedScene:
    """Return a random scene of 30 to 60 seconds in which every label is likely to occur.

    With ``movements``, the figure performs some of these instead and walks between them.
    """
    wide, deep = rng.uniform(3.6, 5.0), rng.uniform(3.4, 4.6)
    mat = rng.random() < 0.5  # a mat on the floor instead of a bed
    thick = rng.uniform(0.05, 0.12) if mat else rng.uniform(0.35, 0.55)
    long = rng.uniform(1.9, 2.1)
    bx = rng.uniform(1.3, wide - 1.4)
    by = rng.uniform(0.4, 0.62) * deep if mat else deep - 0.55
    bed = Cuboid(
        (bx - long / 2, by - 0.45, 0.0), (bx + long / 2, by + 0.45, thick), _colour(rng, 0.5)
    )
    pillow = Cuboid(
        (bx - long / 2 + 0.05, by - 0.3, thick),
        (bx - long / 2 + 0.4, by + 0.3, thick + 0.07),
        _colour(rng, 0.6),
    )
    feet = 0.0
    if rng.random() < 0.5:
        feet, shift = math.pi, 2 * bx
        pillow = Cuboid(
            (shift - pillow.high[0], by - 0.3, thick),
            (shift - pillow.low[0], by + 0.3, thick + 0.07),
            pillow.colour,
        )
    seat_height, cx = rng.uniform(0.4, 0.5), rng.uniform(0.35, 0.7)
    cy = rng.uniform(0.8, max(0.9, (by - 0.9) if not mat else by - 1.0))
    wood = _colour(rng, 0.2)
    chair = chair_boxes(cx, cy, seat_height, wood, back=rng.random() < 0.6)
    boxes = (bed, *((pillow,) if rng.random() < 0.6 else ()), *chair)
    if rng.random() < 0.4:
        side = rng.uniform(0.3, 0.6)
        boxes += (
            Cuboid(
                (0.02, deep - side - 0.02, 0),
                (side, deep - 0.02, rng.uniform(0.5, 1.8)),
                _colour(rng, 0.2),
            ),
        )
    room = Room(
        deep,
        _colour(rng, 0.35),
        _colour(rng, 0.5),
        boxes,
        float(rng.choice([0.0, rng.uniform(0.06, 0.16)])),
        rng.uniform(0.05, 0.35),
        (rng.uniform(0.5, wide - 0.5), rng.uniform(0.5, deep - 0.5)),
        rng.uniform(0.0, 0.12),
        int(rng.integers(1 << 30)),
    )
    camera = _camera(rng, wide, deep, (bx, by), width, height)
    body_bed = (bx - 0.12 * math.cos(feet), by, thick, feet)
    door = (
        (wide + 1.6, rng.uniform(-0.5, 1.0))
        if rng.random() < 0.5
        else (rng.uniform(1.0, wide), -1.8)
    )
    script = Script(rng, (cx, cy, seat_height, 0.0), body_bed, door)
    if movements:
        _exercise(script, movements, wide, by, door)
    else:
        _act(script, wide, by, door)
    ground = ((bx - long / 2, by - 0.45, bx + long / 2, by + 0.45, thick),)
    return RenderedScene(room, camera, random_look(rng), tuple(script.acts), ground)


def chair_boxes(
    x: float, y: float, height: float, colour: Colour, back: bool
) -> tuple[Cuboid, ...]:
    """Return a chair (or a stool) that faces right, its seat centred on x, y."""
    legs = tuple(
        Cuboid((x + a - 0.02, y + b - 0.02, 0), (x + a + 0.02, y + b + 0.02, height - 0.04), colour)
        for a in (-0.19, 0.19)
        for b in (-0.19, 0.19)
    )
    seat = Cuboid((x - 0.22, y - 0.22, height - 0.05), (x + 0.22, y + 0.22, height), colour)
    rest = Cuboid((x - 0.22, y - 0.22, height), (x - 0.18, y + 0.22, height + 0.45), colour)
    return (*legs, seat, *((rest,) if back else ()))


def random_look(rng: np.random.Generator) -> Appearance:
    """Return a random person."""
    tone = rng.uniform(0.35, 0.95)
    skin = (0.95 * tone, 0.74 * tone, 0.6 * tone)
    hair = rng.uniform(0.03, 0.25)
    trousers = _colour(rng, 0.08)
    return Appearance(
        skin,
        (hair, 0.8 * hair, 0.65 * hair),
        _colour(rng, 0.08),
        trousers,
        _colour(rng, 0.05),
        rng.uniform(0.88, 1.08),
        rng.uniform(0.85, 1.25),
        bool(rng.random() < 0.5),
        bool(rng.random() < 0.3),
    )


def _act(script: Script, wide: float, by: float, door: tuple[float, float]) -> None:
    rng = script.rng
    script.away(rng.uniform(1, 5))
    while sum(act.length_s for act in script.acts) < 40:
        plays = ["sit", "sit", "lie", "fall", "fall", "walk"]
        for play in rng.permutation(plays)[: int(rng.integers(2, 4))]:
            for _ in range(int(rng.integers(play == "fall", 3))):
                script.walk(*_free_floor(rng, wide, by), rng.uniform(0.5, 1.4))
            if play == "sit":
                script.sit_down(rng.uniform(1.2, 3.0), on_bed=rng.random() < 0.4)
                script.sit(rng.uniform(1.5, 9))
                script.stand_up(rng.uniform(1.2, 3.0))
            elif play == "lie":
                script.lie(rng.uniform(2.2, 4.5), rng.uniform(3, 14))
                script.stand_up(rng.uniform(2.5, 5))
            elif play == "fall":
                if rng.random() < 0.4:
                    script.stand(rng.uniform(0.3, 1.5))
                script.fall(rng.uniform(0.5, 1.1), rng.uniform(1.5, 6), _side(script, wide, by))
                script.stand_up(rng.uniform(2.5, 6))
            elif rng.random() < 0.5:  # standing counts as walking
                script.stand(rng.uniform(0.5, 2.5))
        script.walk(*door, rng.uniform(0.7, 1.3))
        script.away(rng.uniform(1, 4))


def _exercise(
    script: Script,
    movements: Sequence[Movement],
    wide: float,
    by: float,
    door: tuple[float, float],
) -> None:
    rng = script.rng
    script.away(rng.uniform(1, 3))
    script.walk(*_free_floor(rng, wide, by), 1.2)
    while sum(act.length_s for act in script.acts) < 45:
        x, y = _free_floor(rng, wide, by)
        if rng.random() < 0.5:
            script.walk(x, y, rng.uniform(0.7, 1.4))
        else:  # turn that way
            script.walk(0.8 * script.now[X] + 0.2 * x, 0.8 * script.now[Y] + 0.2 * y, 0.7)
        if rng.random() < 0.3:
            script.stand(rng.uniform(0.3, 1.5))
        script.perform(movements[int(rng.integers(len(movements)))])
    script.walk(*door, rng.uniform(0.7, 1.3))
    script.away(rng.uniform(1, 2))


def _free_floor(rng: np.random.Generator, wide: float, by: float) -> tuple[float, float]:
    """Return a random place free of furniture."""
    return rng.uniform(0.9, wide - 0.4), rng.uniform(0.5, max(0.9, by - 0.7))


def _side(script: Script, wide: float, by: float) -> float:
    """Return a direction to fall in that does not lead into furniture or out of the room."""
    rng, now, (sx, sy, _, _) = script.rng, script.now, script.seat
    limit = by + 1.2 if script.bed[2] < 0.2 else by - 0.6
    for _ in range(20):
        side = float(rng.choice([0.0, 0.0, math.pi, 1.5, -1.5]) + rng.normal(0, 0.3))
        for reach in (0.8, 1.6):
            x = now[X] + reach * math.cos(now[AZIMUTH] + side)
            y = now[Y] + reach * math.sin(now[AZIMUTH] + side)
            if not (0.3 < x < wide and 0 < y < limit and math.hypot(x - sx, y - sy) > 0.6):
                break
        else:
            break
    return side


def _camera(
    rng: np.random.Generator,
    wide: float,
    deep: float,
    bed: tuple[float, float],
    width: int,
    height: int,
) -> Camera:
    if rng.random() < 0.45:  # under the ceiling, looking down
        middle = np.array([rng.uniform(0.4, 0.6) * wide, rng.uniform(0.4, 0.6) * deep, 0.0])
        middle[:2] = 0.5 * middle[:2] + 0.5 * np.array(bed)
        at = middle + np.array([*rng.normal(0, 0.25, 2), rng.uniform(2.5, 3.6)])
        turn = rng.uniform(-math.pi, math.pi)
        up = np.array([math.cos(turn), math.sin(turn), 0.0])
        return Camera.looking(at, middle, rng.uniform(55, 85), width, height, up)
    at = np.array([wide + rng.uniform(-1.8, 0.6), rng.uniform(-1.2, 0.0), rng.uniform(1.8, 2.9)])
    target = np.array(
        [rng.uniform(0.35, 0.5) * wide, rng.uniform(0.4, 0.6) * deep, rng.uniform(0.2, 0.7)]
    )
    tilt = UP + np.array([*rng.normal(0, 0.03, 2), 0])
    return Camera.looking(at, target, rng.uniform(55, 80), width, height, tilt)


def _colour(rng: np.random.Generator, low: float) -> Colour:
    base = rng.uniform(low, 0.95)
    tint = 1 + rng.normal(0, 0.18, 3)
    r, g, b = np.clip(base * tint, 0.02, 0.98)
    return float(r), float(g), float(b)
