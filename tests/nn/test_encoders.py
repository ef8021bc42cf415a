"""Encoders: all stacks through the same tests, the exact one against torch's own over windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.nn import fast
from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder
from costream.nn.encoder import Encoder
from costream.nn.nystrom.encoder import NystromEncoder
from kit.encoders import build_encoder, step_through
from kit.paths import REFS

REFERENCE = REFS / "transformers/co_encoder2_gelu.npz"


def nystrom(landmarks: str) -> Callable[..., NystromEncoder]:
    return partial(build_encoder, NystromEncoder, num_landmarks=3, landmarks=landmarks)


SOFT = {"attention": "soft", "residual": "scaled", "activation": "none"}
deep = partial(build_encoder, DeepEncoder)
# name -> a builder; the form of the attention, the depth and the style vary
FORMS: dict[str, Callable[..., Any]] = {
    "one block": partial(build_encoder, depth=1),
    "two blocks": partial(build_encoder, depth=2, norm_first=True),
    "three blocks": partial(build_encoder, depth=3),
    "deep": partial(deep, depth=3),
    "deep, rotary": partial(deep, depth=2, rotary=True, norm_first=True, activation="relu"),
    "deep, soft": partial(deep, depth=2, **SOFT),
    "deep, soft, rotary": partial(deep, depth=2, attention="soft", rotary=True, qkv_bias=False),
    "nystrom, one block": partial(nystrom("continual"), depth=1),
    "nystrom, two blocks": partial(nystrom("continual"), depth=2),
    "nystrom, fixed": partial(nystrom("fixed"), depth=1),
    "nystrom, fixed, three blocks": partial(nystrom("fixed"), depth=3, qkv_bias=False),
}
every_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    fast.compile_blocks()


def clip(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, 16, dtype=torch.float64)


@every_form
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_chunking_equals_steps_and_clip(form: str, data: st.DataObject) -> None:
    window = data.draw(st.integers(3, 9))
    tokens = data.draw(st.integers(1, 3)) if form.startswith("deep") else 1
    more = {"tokens": tokens} if tokens > 1 else {}
    encoder = FORMS[form](window=window).double()
    chunks = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    x = clip(data.draw(st.integers(1, 3)), tokens * sum(chunks))
    state, out = encoder.init_state(len(x)), []
    for part in x.split([tokens * steps for steps in chunks], 1):
        if data.draw(st.booleans()):
            steps = part.split(tokens, 1)
            rows = steps if tokens > 1 else [step[:, 0] for step in steps]
            out += [encoder.forward_step(row, state).view(row.shape[0], -1, 16) for row in rows]
        else:
            out.append(encoder.forward_steps(part, state, **more))
    whole = encoder(x, **more)
    torch.testing.assert_close(torch.cat(out, 1), whole)
    torch.testing.assert_close(encoder(x, last=tokens, **more), whole[:, -tokens:])


@every_form
@pytest.mark.parametrize("last", [0, -1])
def test_less_than_one_row_is_refused(form: str, last: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        FORMS[form]()(clip(1, 5), last=last)


@every_form
def test_streams_that_join_leave_and_start_again(form: str) -> None:
    encoder = FORMS[form]().double()
    x, state = clip(4, 40), encoder.init_state(2)
    for t in range(10):
        encoder.forward_step(x[:2, t], state)
    # Stream 2 joins with a window half full, stream 3 with an empty one.
    late = encoder.init_state(1)
    encoder.forward_steps(x[2:3, 7:10], late)
    state = type(state).cat([state, late, encoder.init_state(1)])
    starts, field = [0, 0, 7, 10], encoder.window
    if isinstance(encoder, DeepEncoder):
        assert encoder.receptive_field == encoder.depth * (field - 1) + 1
        field = encoder.receptive_field
    assert encoder.warmup(state) == tuple(10 - start < field for start in starts)
    assert encoder.warmup(state, ago=3) == tuple(7 - start < field for start in starts)
    for t in range(10, 20):
        out = encoder.forward_step(x[:, t], state)
        for stream, start in enumerate(starts):
            alone = encoder(x[stream : stream + 1, start : t + 1], last=1)[:, 0]
            torch.testing.assert_close(out[stream : stream + 1], alone)
    state.reset([1])
    out = encoder.forward_steps(x[:, 20:30], state)
    torch.testing.assert_close(out[1:2], encoder(x[1:2, 20:30]))
    starts[1] = 20
    state = state.take([3, 1])  # streams 0 and 2 leave, the others change places
    for t in range(30, 40):
        pair = encoder.forward_step(x[[3, 1], t], state)
        for row, stream in enumerate((3, 1)):
            alone = encoder(x[stream : stream + 1, starts[stream] : t + 1], last=1)[:, 0]
            torch.testing.assert_close(pair[row : row + 1], alone)


@pytest.mark.parametrize("form", [form for form in FORMS if "nystrom" not in form])
@pytest.mark.parametrize("batch", [1, 5])
def test_bfloat16_steps(form: str, batch: int) -> None:
    encoder, x = FORMS[form](final_norm=True), clip(batch, 20).float()
    exact = step_through(encoder, x)
    rough = step_through(encoder.bfloat16(), x.bfloat16())
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.15, rtol=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_form
@pytest.mark.parametrize("batch", [1, 4])
def test_steps_on_a_gpu(form: str, batch: int) -> None:
    encoder, x = FORMS[form](), clip(batch, 20).float()
    truth = encoder(x)
    encoder, x = encoder.cuda(), x.cuda()
    state = encoder.init_state(batch)
    state.reset([0])
    first = encoder.forward_steps(x[:, :5], state)
    rest = torch.stack([encoder.forward_step(row, state) for row in x[:, 5:].unbind(1)], 1)
    torch.testing.assert_close(torch.cat([first, rest], 1).cpu(), truth, rtol=0, atol=1e-4)
    torch.testing.assert_close(encoder(x).cpu(), truth, rtol=0, atol=1e-4)
    state.reset([batch - 1])
    out = encoder.forward_step(x[:, 0], state)
    torch.testing.assert_close(out[-1:].cpu(), truth[-1:, 0], rtol=0, atol=1e-4)


@every_form
def test_every_parameter_learns_and_dropout_is_for_training_only(form: str) -> None:
    encoder, x = FORMS[form](dropout=0.3, final_norm=True), clip(2, 15).float()
    assert torch.equal(encoder(x), encoder(x))
    encoder.train()
    assert not torch.equal(encoder(x), encoder(x))
    with torch.enable_grad():
        encoder(x).square().sum().backward()
    assert [k for k, p in encoder.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (build_encoder, {"depth": 0}, "at least 1"),
        (build_encoder, {"window": 0}, "at least 1"),
        (build_encoder, {"heads": 5}, "not a multiple"),
        (build_encoder, {"activation": "tanh"}, "activation"),
        (deep, {"attention": "linear"}, "attention"),
        (deep, {"residual": "none"}, "residual"),
        (deep, {"residual": "scaled", "norm_first": True}, "scaled if not norm_first"),
        (deep, {"rotary": True, "embed_dim": 12}, "even width"),
        (nystrom("learned"), {}, "continual or fixed"),
        (nystrom("fixed"), {"window": 2}, "exceed the window"),
    ],
)
def test_bad_arguments(build: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)


# The exact encoder.

STYLES = [
    {},
    {"norm_first": True, "activation": "relu", "final_norm": True},
    {"qkv_bias": False, "out_bias": False, "final_norm": True},
    {"norm_first": True, "qkv_bias": False},
]
# The bound that is promised: activations are of size one after the norm.
TOLERANCE = {"atol": 2e-5, "rtol": 0.0}


def newest_of_windows(encoder: Encoder, x: Tensor, ends: list[int] | None = None) -> Tensor:
    """Newest output of ``nn.TransformerEncoder``, float64, for the window ending at each row."""
    reference = torch_twin(encoder)
    n, x = encoder.window, x.double()
    ends = list(range(x.shape[1])) if ends is None else ends
    rows = [reference(x[:, max(0, t - n + 1) : t + 1])[:, -1] for t in ends]
    return torch.stack(rows, 1)


def torch_twin(encoder: Encoder) -> nn.TransformerEncoder:
    first = encoder.layers[0]
    layer = nn.TransformerEncoderLayer(
        encoder.embed_dim,
        first.self_attn.num_heads,
        first.linear1.out_features,
        0.0,
        "gelu" if "gelu" in first.activate.__name__ else "relu",
        norm_first=first.norm_first,
        batch_first=True,
        dtype=torch.float64,
    )
    norm = None if encoder.norm is None else nn.LayerNorm(encoder.embed_dim, dtype=torch.float64)
    twin = nn.TransformerEncoder(layer, encoder.depth, norm, enable_nested_tensor=False)
    twin.load_state_dict(_with_zero_biases(encoder))
    return twin.train(False)


def _with_zero_biases(encoder: Encoder) -> dict[str, Tensor]:
    weights = {k: v.double() for k, v in encoder.state_dict().items()}
    d = encoder.embed_dim
    for k in range(encoder.depth):
        prefix = f"layers.{k}.self_attn."
        weights.setdefault(f"{prefix}in_proj_bias", torch.zeros(3 * d, dtype=torch.float64))
        weights.setdefault(f"{prefix}out_proj.bias", torch.zeros(d, dtype=torch.float64))
    return weights


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_steps_clip_and_window_agree_in_float64(depth: int, style: dict[str, object]) -> None:
    encoder = build_encoder(depth=depth, **style).double()
    x = torch.randn(3, 26, 16, dtype=torch.float64)
    truth = newest_of_windows(encoder, x)
    torch.testing.assert_close(step_through(encoder, x), truth)
    torch.testing.assert_close(step_through(encoder, x[:1]), truth[:1])
    torch.testing.assert_close(encoder(x), truth)
    torch.testing.assert_close(encoder(x, last=4), truth[:, -4:])
    torch.testing.assert_close(encoder.forward_steps(x, encoder.init_state(3)), truth)


@pytest.mark.long
@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("depth", [1, 2])
def test_float32_error_does_not_grow_with_the_logits(depth: int, scale: float) -> None:
    n = 64
    encoder = build_encoder(depth=depth, window=n, heads=2, logit_scale=scale)
    x = torch.randn(3, 10 * n, 16)
    ends = [0, n - 2, n - 1, 2 * n - 3, 2 * n - 1, 10 * n - 1]  # after 1, n-1, n, .., 10 n steps
    truth = newest_of_windows(encoder, x, ends).float()
    torch.testing.assert_close(step_through(encoder, x)[:, ends], truth, **TOLERANCE)
    torch.testing.assert_close(step_through(encoder, x[:1])[:, ends], truth[:1], **TOLERANCE)


@pytest.mark.parametrize("steps", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("heads", [1, 2])  # of width 8, with compiled steps, and 4
@pytest.mark.parametrize("depth", [1, 2])
def test_many_steps_leave_no_trace(depth: int, heads: int, steps: int) -> None:
    """With hard logits, which are worse than soft ones."""
    n, sizes = 8, {"embed_dim": 8, "heads": heads, "feedforward": 8}
    encoder = build_encoder(depth=depth, window=n, logit_scale=16.0, **sizes)
    block = torch.randn(1, 1000, 8)
    block[:, 500] *= 30  # a spike in every thousand
    rows = list(block[0].split(1))
    state = encoder.init_state()
    with torch.inference_mode():
        for t in range(steps):
            out = encoder.forward_step(rows[t % 1000], state)
            if t in (0, n - 1, 2 * n, steps // 2) or t >= steps - 3:
                low = max(0, t - n + 1)
                window = torch.cat([rows[k % 1000] for k in range(low, t + 1)])[None]
                truth = newest_of_windows(encoder, window, [t - low])[:, 0].float()
                torch.testing.assert_close(out, truth, **TOLERANCE)
    assert state.attention.steps.tolist() == [steps]


def test_macs_of_one_and_more_blocks() -> None:
    d, h, n, ff = 16, 4, 7, 24
    feedforward, ordinary = 2 * d * ff, 4 * n * d**2 + 2 * n**2 * d
    changed = 4 * d**2 + 2 * n * h * d + feedforward
    retroactive = 3 * d**2 + 2 * n**2 * d + n * d**2 + n * feedforward
    counts = {k: build_encoder(depth=k).count_macs() for k in (1, 2, 4)}
    assert counts[1] == 4 * d**2 + 2 * n * d + feedforward
    assert counts[2] == retroactive + changed
    assert counts[4] == retroactive + 2 * (ordinary + n * feedforward) + changed
    assert build_encoder(depth=3).dense_macs == 3 * (ordinary + n * feedforward)


def test_one_block_keeps_keys_and_values_only() -> None:
    names = {depth: set(build_encoder(depth=depth).init_state().tensors()) for depth in (1, 2)}
    assert names[1] == {"attention.steps", "attention.keys", "attention.values"}
    assert names[2] == names[1] | {"attention.queries", "rows"}


def test_attributes() -> None:
    encoder = build_encoder(depth=2, window=9)
    assert (encoder.receptive_field, encoder.delay, encoder.stride) == (9, 0, 1)


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/refs beside the repository")
def test_reference_arrays_of_two_blocks() -> None:
    data = np.load(REFERENCE)
    encoder = Encoder(EncoderConfig(16, 4, 24, 2, 10, final_norm=True)).eval()
    weights = {k[3:]: torch.from_numpy(data[k]) for k in data.files if k.startswith("sd/")}
    encoder.load_state_dict({_own_name(k): v for k, v in weights.items()})
    x = torch.from_numpy(data["x"]).transpose(1, 2)
    out = step_through(encoder, x)[:, 9:].transpose(0, 1)
    torch.testing.assert_close(out, torch.from_numpy(data["window_out"]), **TOLERANCE)


def _own_name(key: str) -> str:
    parts = key.split(".")
    if parts[0] == "norm":
        return f"norm.{parts[-1]}"
    start = next(k for k, part in enumerate(parts) if part[:4] in ("self", "line", "norm"))
    return ".".join([*parts[:2], *(part for part in parts[start:] if part != "fn")])
