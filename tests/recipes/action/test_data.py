"""Data of the action recipe: labels, splits, sampling and augmentation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from costream.core.errors import UsageError
from weights.recipes.action.data import (
    TEST,
    VALIDATION,
    Sampler,
    distort,
    figure_mask,
    merge,
    read_pack,
    soften,
    split_of,
)
from weights.recipes.action.rendering.figure import LABELS


def test_merge():
    names = ["background", "walk", "background", "falling", "falled", "active", "sleeping",
             "background"]  # fmt: skip
    named = [LABELS[k] if k >= 0 else None for k in merge(names)]
    assert named == ["background", "walk", None, "fall", "fall", None, "lie", "background"]


def test_split_keeps_videos_apart():
    assert not set(TEST) & set(VALIDATION)
    assert [split_of(f"{name}_x.mp4") for name in (TEST[0], VALIDATION[0], "2020")] == [
        "test", "validation", "train"]  # fmt: skip


def test_a_file_that_is_not_a_pack(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="not the fir_action pack"):
        list(read_pack(tmp_path / "x.tar", (8, 6)))


def test_soft_targets(clips):
    soft = soften(clips[0], 7, 8.0)
    known = torch.from_numpy(clips[0].labels >= 0)
    assert torch.allclose(soft[known].sum(1), torch.ones(int(known.sum())))
    assert (soft[~known] == 0).all()
    assert soft[45, 1] == 1  # in the middle of a stretch
    assert 0.3 < soft[59, 1] < 0.7  # at its end
    assert (soft.argmax(1)[known].numpy() == clips[0].labels[known.numpy()]).all()


def test_sampler_draws_rare_labels_and_keeps_frames_and_targets_together(clips):
    sampler, rng = Sampler(clips, 7, 48, 8.0), np.random.default_rng(0)
    seen, agree = torch.zeros(7), []
    for _ in range(40):
        frames, target = sampler.draw(rng)
        assert frames.shape == (48, 3, 24, 32)
        sure = (target.max(1).values > 0.99).numpy()
        bright, label = frames.mean((1, 2, 3)).numpy()[sure], target.argmax(1).numpy()[sure]
        if len(set(label)) > 1:  # the higher the label, the brighter the picture
            agree.append(np.corrcoef(bright, label)[0, 1])
        seen += target.sum(0)
    assert (seen > 0).all()
    assert np.median(agree) > 0.95


def test_moments_reach_back_and_know_where_the_figure_is(clips):
    clip = replace(clips[0], rendered=True, overhead=True)
    sampler, rng = Sampler([clip], 7, 48, 8.0), np.random.default_rng(0)
    for _ in range(20):
        frames, target, mask = sampler.moment(rng, (1, 4, 16))
        assert frames.shape == (4, 3, 24, 32)
        assert mask.shape == (24, 32)
        assert float(target.sum()) == pytest.approx(1)
        inside = frames[0][:, mask > 0.99].mean() if (mask > 0.99).any() else None
        if inside is not None:
            assert inside > frames[0][:, mask < 0.01].mean()
    _, _, unknown = Sampler(clips, 7, 48, 8.0).moment(rng, (1,))
    assert unknown is None


def test_figure_mask(clips):
    rendered = replace(clips[0], rendered=True)
    mask = figure_mask(rendered, 150)
    assert mask[8:16, 8:24].min() == 1
    assert mask.sum() == 8 * 16
    assert figure_mask(rendered, 0).sum() == 0


def test_only_views_from_overhead_are_turned():
    corner = torch.zeros(1, 3, 24, 32, dtype=torch.uint8)
    corner[:, :, :6] = 255  # bright above
    rng = np.random.default_rng(2)
    upright = [distort(corner, rng, overhead=False)[0] for _ in range(20)]
    assert all(p[..., :6, 8:24].mean() > p[..., 18:, 8:24].mean() for p in upright)
    any_way = [distort(corner, rng, overhead=True)[0] for _ in range(20)]
    assert not all(p[..., :6, 8:24].mean() > p[..., 18:, 8:24].mean() for p in any_way)


def test_distort_treats_all_frames_alike_but_keeps_motion():
    rng = np.random.default_rng(1)
    frames = torch.randint(0, 256, (1, 3, 24, 32), dtype=torch.uint8).expand(6, -1, -1, -1).clone()
    frames[3:] //= 2
    for _ in range(10):
        out, _ = distort(frames, rng)
        assert out.shape == frames.shape
        assert 0 <= float(out.min()) <= float(out.max()) <= 255
        near = (out[0] - out[2]).abs().mean()
        far = (out[0] - out[4]).abs().mean()
        assert far > near
