"""Token classifiers: CoOadTR, DeepCoT and CoNystrom, steps against clips, sizes of the papers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from costream.models.exporting.tokens import why_not_tokens
from costream.models.oad.conystrom import CoNystrom, CoNystromAudio
from costream.models.oad.cooadtr import CoOadTR
from costream.models.oad.deepcot import DeepCoT
from costream.training.features.recipes import recipe_of
from kit.paths import REFS

REFERENCES = REFS / "transformers"
needs_references = pytest.mark.skipif(
    not REFERENCES.exists(), reason="needs ../shared/refs beside the repository"
)
TOLERANCE = {"atol": 2e-5, "rtol": 0.0}

# Published key -> ours, the longest match first.
BLOCK_1 = {
    "3.0.1.": "encoder.layers.0.self_attn.",
    "3.1.fn.": "encoder.layers.0.norm1.",
    "3.2.1.0.": "encoder.layers.0.linear1.",
    "3.2.1.3.": "encoder.layers.0.linear2.",
    "3.3.fn.": "encoder.layers.0.norm2.",
}
BLOCKS_2 = {
    "3.0.0.1.": "encoder.layers.0.self_attn.",
    "3.0.1.fn.0.": "encoder.layers.0.norm1.",
    "3.0.1.fn.1.fn.0.": "encoder.layers.0.linear1.",
    "3.0.1.fn.1.fn.3.": "encoder.layers.0.linear2.",
    "3.0.1.fn.2.": "encoder.layers.0.norm2.",
    "3.1.fn.0.1.": "encoder.layers.1.self_attn.",
    "3.1.fn.1.fn.": "encoder.layers.1.norm1.",
    "3.1.fn.2.1.0.": "encoder.layers.1.linear1.",
    "3.1.fn.2.1.3.": "encoder.layers.1.linear2.",
    "3.1.fn.3.fn.": "encoder.layers.1.norm2.",
}
AROUND = {
    "0.": "input_projection.",
    "1.pe.weight": "positions.table",
    "1.pe.pattern": "positions.table",
    "4.fn.": "encoder.norm.",
    "5.": "head.",
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "feedforward": 24, "window": 6}


def small(depth: int = 1, kind: type = CoOadTR, **options: Any) -> Any:
    return kind(10, 5, depth=depth, **{**SIZES, **options}).eval()


def step_through(model: nn.Module, x: Tensor) -> Tensor:
    state = model.init_state(len(x))
    return torch.stack([model.forward_step(row, state).logits for row in x.unbind(1)], 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CoOadTR, {}),
        (CoOadTR, {"positions": "fixed", "norm_first": True, "qkv_bias": True, "out_bias": True}),
        (CoOadTR, {"positions": "none", "activation": "relu", "final_norm": False}),
        (CoOadTR, {"positions": "learned", "num_positions": 17}),
        (CoOadTR, {"skip": True}),
        (CoOadTR, {"memory": 3, "memory_decay": 0.8}),
        (DeepCoT, {}),
        (DeepCoT, {"positions": "fixed", "attention": "soft"}),
        (DeepCoT, {"positions": "rotary", "activation": "relu", "memory": 2}),
        (DeepCoT, {"positions": "none", "residual": "scaled", "activation": "none"}),
        (CoNystrom, {"num_landmarks": 4}),
        (CoNystrom, {"num_landmarks": 4, "landmarks": "fixed"}),
    ],
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_chunks_and_clip_agree(depth: int, kind: type, options: dict[str, Any]) -> None:
    model = small(depth, kind, **options).double()
    x = torch.randn(3, 25, 10, dtype=torch.float64)
    clip = model(x)
    assert clip.logits.shape == (3, 25, 5)
    assert clip.anticipation is None
    torch.testing.assert_close(step_through(model, x), clip.logits)
    state = model.init_state(3)
    chunks = [model.forward_steps(part, state).logits for part in x.split(8, 1)]
    torch.testing.assert_close(torch.cat(chunks, 1), clip.logits)
    torch.testing.assert_close(model(x, last=2).logits, clip.logits[:, -2:])


@pytest.mark.parametrize("depth", [1, 2])
def test_an_offset_is_a_stream_that_began_earlier(depth: int) -> None:
    model = small(depth).double()
    x = torch.randn(2, 20, 10, dtype=torch.float64)
    offset = torch.tensor([3, 100])
    state = model.init_state(2)
    state.positions.steps.copy_(offset)
    steps = torch.stack([model.forward_step(row, state).logits for row in x.unbind(1)], 1)
    torch.testing.assert_close(model(x, offset).logits, steps)
    torch.testing.assert_close(model(x[:1], 3).logits, steps[:1])


def test_a_skip_adds_a_linear_map_of_the_row_itself() -> None:
    model, plain = small(skip=True), small()
    plain.load_state_dict(model.state_dict(), strict=False)
    x = torch.randn(2, 20, 10)
    torch.testing.assert_close(model(x).logits, plain(x).logits + model.skip(x))
    assert model.count_macs() == plain.count_macs() + 10 * 5
    assert model.dense_macs == plain.dense_macs + 10 * 5
    with pytest.raises(ValueError, match="skip needs head"):
        small(head=False, skip=True)


def test_without_projection_and_head() -> None:
    model = CoOadTR(16, 5, input_projection=False, head=False, **SIZES).eval()
    assert model(torch.randn(1, 3, 16)).logits.shape == (1, 3, 16)
    assert not any(k.startswith(("input_projection", "head")) for k in model.state_dict())
    with pytest.raises(ValueError, match="input_width"):
        small(input_projection=False)
    with pytest.raises(ValueError, match="positions"):
        small(positions="absolute")


@pytest.mark.parametrize(
    ("depth", "width", "parameters", "mega_macs"),
    [(1, 3072, 9_534_486, 9.59), (2, 3072, 15_832_086, None), (1, 8192, None, 14.83)],
)
def test_published_sizes(
    depth: int, width: int, parameters: int | None, mega_macs: float | None
) -> None:
    with torch.device("meta"):
        model = CoOadTR(width, 22, depth=depth)
    if parameters is not None:
        assert sum(p.numel() for p in model.parameters()) == parameters
    if mega_macs is not None:
        assert model.count_macs() / 1e6 == pytest.approx(mega_macs, rel=1e-3)
    assert model.dense_macs > 20 * model.count_macs() / depth**3


def test_default_tables_are_the_best_of_the_paper() -> None:
    assert small(window=9).positions.table.shape == (9, 16)
    assert small(window=9, positions="fixed").positions.table.shape == (17, 16)


@pytest.mark.long
@pytest.mark.parametrize("depth", [1, 2])
def test_it_learns_what_the_last_rows_were(depth: int) -> None:
    # The class is the sign of the sum over a window of three rows: attention must be used.
    torch.manual_seed(1)
    sizes = {"embed_dim": 16, "num_heads": 2, "feedforward": 32, "window": 3}
    model = CoOadTR(1, 2, depth=depth, dropout=0.0, **sizes).train()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    with torch.enable_grad():
        for _ in range(150):
            x = torch.randn(16, 12, 1)
            offset = torch.randint(0, 100, (16,))
            target = (x[..., 0].unfold(1, 3, 1).sum(-1) > 0).long()
            logits = model(x, offset, last=10).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert loss.item() < 0.35  # guessing gives 0.69, the newest row alone 0.55


def test_one_block_is_cooadtr_and_two_are_not() -> None:
    x = torch.randn(1, 20, 10)
    for depth in (1, 2):
        exact = small(depth, qkv_bias=True, out_bias=True)
        deep = small(depth, DeepCoT)
        deep.load_state_dict(exact.state_dict())
        same = torch.allclose(deep(x).logits, exact(x).logits, atol=1e-6)
        assert same == (depth == 1)


def test_a_memory_reaches_behind_the_window() -> None:
    model, x = small(memory=3, memory_decay=1.0), torch.randn(1, 20, 10)
    other = torch.cat([x[:, :1] + 1, x[:, 1:]], 1)
    assert (model(x).logits[:, -1] - model(other).logits[:, -1]).abs().max() > 1e-4
    assert not model.exact
    assert "long memory" in why_not_tokens(model)
    assert model.graph_key(x[:, 0], model.init_state()) is None
    assert recipe_of(small(memory=3, memory_decay=0.9)).window == 6 + 29
    assert model.count_macs() == small().count_macs() + model.memory.count_macs()


@pytest.mark.parametrize("skip", [False, True])
def test_tokens_of_a_step_get_their_positions(skip: bool) -> None:
    model = small(2, DeepCoT, skip=skip).double()
    x = torch.randn(1, 12, 10, dtype=torch.float64)
    state = model.init_state()
    steps = [model.forward_step(part, state).logits for part in x.split(3, 1)]
    tokens = model.positions(model.input_projection(x))
    expected = model.head(model.encoder(tokens, tokens=3))
    if model.skip is not None:
        expected += model.skip(x)
    torch.testing.assert_close(torch.cat(steps, 1), expected)


def test_sizes_and_macs_of_deepcot() -> None:
    model = DeepCoT(128, 10, depth=4)
    assert (model.window, model.receptive_field) == (120, 4 * 119 + 1)
    block = 4 * 192**2 + 2 * 120 * 192 + 2 * 192 * 192
    assert model.count_macs() == 128 * 192 + 4 * block + 1920
    assert model.dense_macs > 60 * model.count_macs()


def test_sizes_of_conystrom() -> None:
    with torch.device("meta"):
        video, sound = CoNystrom(4096, 22), CoNystromAudio(10)
        exact = CoOadTR(4096, 22)
    assert sum(p.numel() for p in video.parameters()) == sum(p.numel() for p in exact.parameters())
    assert sum(p.numel() for p in sound.parameters()) == pytest.approx(286e3, rel=0.01)
    assert (video.encoder.attention[0].num_landmarks, video.window) == (16, 64)
    assert (sound.encoder.attention[0].num_landmarks, sound.window) == (4, 120)


@needs_references
@pytest.mark.parametrize(
    ("name", "depth", "positions", "block_keys"),
    [
        ("cooadtr_b1_recycling_learned_64", 1, "learned", BLOCK_1),
        ("cooadtr_b2_recycling_fixed_127", 2, "fixed", BLOCKS_2),
    ],
)
def test_reference_arrays(
    name: str, depth: int, positions: str, block_keys: dict[str, str]
) -> None:
    data = np.load(REFERENCES / f"{name}.npz")
    sizes = {"embed_dim": 32, "num_heads": 4, "feedforward": 32}
    model = CoOadTR(24, 22, depth=depth, positions=positions, **sizes).eval()
    keys = sorted({**AROUND, **block_keys}.items(), key=lambda pair: -len(pair[0]))
    weights = {}
    for key in data.files:
        if key.startswith("sd/"):
            old, new = next(pair for pair in keys if key[3:].startswith(pair[0]))
            weights[new + key[3 + len(old) :]] = torch.from_numpy(data[key])
    model.load_state_dict(weights)
    x, truth = torch.from_numpy(data["x"])[None], torch.from_numpy(data["window_out"])
    torch.testing.assert_close(step_through(model, x)[0, 63:], truth, **TOLERANCE)
    torch.testing.assert_close(model(x).logits[0, 63:], truth, **TOLERANCE)
