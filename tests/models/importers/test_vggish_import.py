"""A network for sound and its VGGish become one model that runs on sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from costream.core.errors import ModelError, UsageError
from costream.core.records import AudioBlock
from costream.models.audio.vggish import VGGish
from costream.models.build import build
from costream.models.importing import import_files
from costream.models.streaming import StreamingModel
from kit import foreign_sound

SIZES = {"widths": (2, 3, 4, 4, 5, 5), "hidden": 6}


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[Path]]:
    """Write checkpoints, return their paths."""

    def write(*contents: Any) -> list[Path]:
        paths = [tmp_path / f"{k}.pth" for k in range(len(contents))]
        for content, path in zip(contents, paths, strict=True):
            torch.save(content, path)
        return paths

    return write


def read(paths: list[Path], **config: Any) -> tuple[Any, dict[str, Tensor]]:
    pairs = {"num_heads": 4, "window": 6, "labels": "gtzan", **config}
    return import_files(paths, "mine", {k: str(v) for k, v in pairs.items()})


def numpy_pca(width: int = 128) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in foreign_sound.pca(width).items()}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@torch.inference_mode()
def test_it_runs_on_sound(files: Callable[..., list[Path]], order: tuple[int, int]) -> None:
    theirs, net = foreign_sound.cotrans()
    paths = files(theirs, foreign_sound.vggish(**SIZES))
    card, tensors = read([paths[k] for k in order])
    assert (card.architecture, card.frontend, card.rate_hz) == ("cotrans", "vggish", 4.0)
    assert card.description.endswith("VGGish of torchvggish.")
    model = StreamingModel(card, *build(card, tensors))
    sound = model.info.sound
    assert sound is not None
    assert (sound.rate_hz, sound.block) == (16_000, 4000)
    front = VGGish(**SIZES).eval()
    front.load_state_dict(foreign_sound.vggish(**SIZES))
    waves = 0.2 * torch.randn(12, 4000)
    truth = net(front(waves[None])).logits[0].softmax(-1).numpy()
    blocks = [AudioBlock(i, (i + 1) / 4, wave.numpy()) for i, wave in enumerate(waves)]
    for together in (False, True):
        state = model.init_state()
        results = (
            model.steps(blocks, state)
            if together
            else [model.step([block], state) for block in blocks]
        )
        ours = np.concatenate([r.probabilities for r in results])
        np.testing.assert_allclose(ours, truth, atol=1e-5, rtol=0)
        assert [r.warmup[0] for r in results] == [True] * 5 + [False] * 7
        assert all(r.spectra is not None and r.spectra[0].shape == (25, 64) for r in results)


@pytest.mark.parametrize("column", [True, False])
def test_with_its_pca(files: Callable[..., list[Path]], column: bool) -> None:
    post = numpy_pca()
    if not column:
        post["pca_means"] = post["pca_means"][:, 0]
    theirs, _ = foreign_sound.cotrans()
    card, tensors = read(files(theirs, foreign_sound.vggish(**SIZES), post))
    assert card.frontend_arguments["output"] == "relu-pca"
    assert torch.equal(tensors["frontend.pca.means"], foreign_sound.pca()["pca_means"].flatten())
    build(card, tensors)
    inside = {f"pproc.{name}": torch.from_numpy(value) for name, value in post.items()}
    whole = files(theirs, {**foreign_sound.vggish(**SIZES), **inside})
    assert read(whole)[0].frontend_arguments["output"] == "relu-pca"
    card, tensors = read(whole, embedding="linear")
    build(card, tensors)
    assert not any("pca" in name for name in tensors)


def test_penultimate_features(files: Callable[..., list[Path]]) -> None:
    theirs, _ = foreign_sound.cotrans(width=6)
    card, tensors = read(
        files(theirs, foreign_sound.vggish(**SIZES)), embedding="penultimate", rate_hz=5
    )
    assert (card.architecture, card.frontend_arguments["hop_frames"]) == ("cooadtr", 20)
    _, front = build(card, tensors)
    assert (front.token_width, front.block) == (6, 3200)


def test_options_that_exclude_each_other_are_refused(files: Callable[..., list[Path]]) -> None:
    theirs, _ = foreign_sound.cotrans()
    weights = foreign_sound.vggish(**SIZES)
    cases: list[tuple[list[Any], dict[str, Any], str]] = [
        ([weights], {}, r"0\.pth: VGGish alone is not a model"),
        ([theirs, weights], {"embedding": "penultimate"}, "takes 128 features, but VGGish has 6"),
        ([theirs, weights], {"embedding": "linear-pca"}, r"1\.pth: .* needs the PCA"),
        ([theirs, weights], {"rate_hz": 30}, "rate_hz=30: VGGish has 100 frames per second"),
        ([theirs, weights, dict(weights)], {}, r"1\.pth: tensor given twice: features\.0\.weight"),
        ([theirs, weights, numpy_pca(7)], {}, r"pca_eigen_vectors is \(7, 7\), not"),
        ([theirs, numpy_pca()], {}, r"1\.pth: .* missing: features\.0\.weight"),
    ]
    for contents, config, message in cases:
        with pytest.raises(ModelError, match=message):
            read(files(*contents), **config)
    with pytest.raises(UsageError, match="embedding: no checkpoint of VGGish"):
        read(files(theirs), embedding="relu")
