"""Rooms, cameras and the drawing of figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from weights.recipes.action.rendering.figure import LABELS, standing
from weights.recipes.action.rendering.render import (
    Appearance,
    Camera,
    Cuboid,
    RenderedScene,
    Room,
    cast,
    draw,
)
from weights.recipes.action.rendering.scenes import (
    UP,
    VISIBLE,
    clips_before,
    random_scene,
    rendered_clip,
    rendered_clips,
)

LOOK = Appearance((0.8, 0.6, 0.5), (0.1, 0.1, 0.1), (0.9, 0.1, 0.1), (0.1, 0.1, 0.9), (0, 0, 0))


def room(*boxes):
    return Room(4.0, (0.5, 0.5, 0.5), (0.7, 0.7, 0.7), boxes, 0.0, 0.0, (2, 2), 0.0, 1)


def camera():
    return Camera.looking(np.array([2.0, -3.0, 1.2]), np.array([2.0, 4.0, 1.2]), 60, 80, 60, UP)


def test_projection():
    c = camera()
    assert c.project(np.array([2.0, 0.0, 1.2])) == pytest.approx((40, 30, 3))
    right, _, _ = c.project(np.array([3.0, 0.0, 1.2]))
    _, low, _ = c.project(np.array([2.0, 0.0, 0.2]))
    assert right > 40
    assert low > 30
    assert c.project(np.array([2.0, -5.0, 1.2]))[2] < 0


def test_rays_go_where_points_are_projected():
    c = camera()
    point = c.at + 2.5 * c.rays(1)[41, 17]
    assert c.project(point) == pytest.approx((17.5, 41.5, 2.5))


def test_depth_of_wall_floor_and_box():
    image, depth, flat = cast(
        room(Cuboid((1.5, 1.0, 0.0), (2.5, 2.0, 0.6), (0, 1, 0))), camera(), 2
    )
    assert image.shape == (60, 80, 3)
    assert depth[10, 40] == pytest.approx(7.0)
    assert not flat[10, 40]
    assert flat[59, 5]
    column, row, _ = camera().project(np.array([2.0, 1.0, 0.3]))
    assert depth[int(row), int(column)] == pytest.approx(4.0)
    assert image[int(row), int(column)].argmax() == 1


@pytest.mark.parametrize(("y", "seen"), [(0.0, True), (3.0, False)])
def test_furniture_hides_what_is_behind_it(y, seen):
    screen = Cuboid((0.5, 1.5, 0.0), (3.5, 1.6, 2.5), (0, 1, 0))
    scene = RenderedScene(room(screen), camera(), LOOK, ())
    image, depth, flat = cast(scene.room, scene.camera, 1)
    before = image.copy()
    covered = draw(image, depth, flat, scene, standing(2.0, y, -np.pi / 2))
    assert (covered > 50) == seen
    changed = np.abs(image - before).max(-1) > 0.2
    assert changed.any() == seen
    if seen:
        column, row, _ = camera().project(np.array([2.0, y, 1.2]))
        assert image[int(row), int(column)].argmax() == 0  # a red shirt


def test_a_scene_repeats_and_its_script_is_complete():
    one, two = (random_scene(np.random.default_rng(4), 40, 30) for _ in range(2))
    assert one.script() == two.script()
    script = one.script()
    assert script[0][0] == 0
    assert script[-1][1] == pytest.approx(one.length_s)
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in pairwise(script))
    assert {label for _, _, label in script} <= set(LABELS)
    assert one.length_s >= 40


def test_random_scenes_play_every_label():
    rng = np.random.default_rng(0)
    told = {label for _ in range(8) for _, _, label in random_scene(rng, 40, 30).script()}
    assert told == set(LABELS)


def test_who_cannot_be_seen_is_background():
    scene = random_scene(np.random.default_rng(4), 40, 30)
    clip = rendered_clip(scene, 2.0, "test")
    assert clip.frames.shape == (len(clip.labels), 3, 30, 40)
    assert clip.labels[0] == 0
    empty = clip.frames[0].astype(int)
    differs = (np.abs(clip.frames - empty).max(1) > 12).mean((1, 2))
    assert (clip.labels[differs < 0.1 * VISIBLE] == 0).all()
    assert (clip.labels[differs > 0.05] > 0).all()


def test_people_before_a_picture_are_what_changes_in_it():
    picture = np.full((3, 30, 40), 90, np.uint8)
    found = clips_before([picture] * 4, 3, 1.0, (32, 24))
    again = clips_before([picture], 3, 1.0, (32, 24))[0]
    assert np.array_equal(found[0].frames, again.frames)
    for clip in found:
        changed = (np.abs(clip.frames.astype(int) - clip.frames[0]).max(1) > 24).mean((1, 2))
        assert clip.frames.shape[1:] == (3, 24, 32)
        assert np.ptp(clip.frames[0]) == 0  # as the picture, and nobody is in view
        assert (changed[clip.labels == 0] < 0.01).all()
        assert changed.max() > 0.01
    assert {LABELS[k] for clip in found for k in clip.labels} >= {"background", "walk"}


def test_rendered_clips_differ_and_repeat():
    first, second = rendered_clips(2, 7, 1.0, (32, 24))
    again = rendered_clips(1, 7, 1.0, (32, 24))[0]
    assert np.array_equal(first.frames, again.frames)
    assert not np.array_equal(first.frames[0], second.frames[0])
