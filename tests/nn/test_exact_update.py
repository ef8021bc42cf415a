from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.eventful.attention import RelativePosition, TokenGrid, attend_frame
from costream.nn.eventful.exact_update import ExactState, ExactUpdate
from costream.nn.eventful.gates import ChosenTokens, Operations
from kit.eventful_nets import randomise


def chosen_tokens(tokens: list[Tensor], frame: TokenGrid, fresh: bool = False) -> ChosenTokens:
    places = torch.cat([t + stream * frame.tokens for stream, t in enumerate(tokens)])
    return ChosenTokens(tuple(tokens), (fresh,) * len(tokens), places)


@pytest.fixture(autouse=True, scope="module")
def _small_frames() -> Iterator[None]:
    """Let small frames be corrected, which would be computed anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("costream.nn.eventful.exact_update._OVERHEAD", 0)
        yield


class Running:
    """Streams whose projected rows are given, and attention by the update and in float64."""

    def __init__(self, frame: TokenGrid, dim: int, streams: int = 1) -> None:
        self.frame, self.update, self.operations = frame, ExactUpdate(), Operations()
        size = (frame.height, frame.width)
        position = RelativePosition(size, dim // frame.heads, pool=frame.pool)
        self.position = randomise(position)
        self.exact = RelativePosition(size, dim // frame.heads, pool=frame.pool).double()
        self.exact.load_state_dict(self.position.state_dict())
        self.qkv = torch.randn(streams, frame.tokens, 3 * dim)
        self.buffer = torch.zeros_like(self.qkv)
        self.state = self.update.init_state(streams, frame, torch.zeros(dim))
        everything = [torch.arange(frame.tokens)] * streams
        self.out = self._step(chosen_tokens(everything, frame, fresh=True))

    def change(self, tokens: list[Tensor], new: Tensor) -> None:
        chosen = chosen_tokens(tokens, self.frame)
        chosen.put(new, self.qkv)
        self.out = self._step(chosen)

    def _step(self, chosen: ChosenTokens) -> Tensor:
        new = chosen.take(self.qkv).clone()
        arguments = self.state, self.frame, self.position, self.operations
        return self.update.step(self.buffer, new, chosen, *arguments)

    @property
    def error(self) -> float:
        exact = TokenGrid(
            self.frame.height, self.frame.width, self.frame.heads, self.frame.pool, torch.float64
        )
        expected = attend_frame(self.qkv.double(), exact, self.exact)
        return float((self.out - expected).abs().max() / expected.abs().max())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.sampled_from([1, 2]), st.data())
def test_any_changes_of_any_frame_leave_attention_exact(
    rows: int, columns: int, heads: int, pool: int, data: st.DataObject
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    frame = TokenGrid(rows * pool, columns * pool, heads, pool)
    running = Running(frame, 4 * heads, streams=2)
    assert running.error < 1e-5
    for _ in range(5):
        counts = data.draw(st.tuples(*[st.integers(0, frame.tokens)] * 2))
        tokens = [torch.randperm(frame.tokens)[:count].sort().values for count in counts]
        running.change(tokens, torch.randn(sum(counts), 12 * heads))
        assert running.error < 1e-5


@pytest.mark.parametrize(("scale", "limit"), [(1, 2e-6), (16, 2e-5)])
def test_300_frames_with_logits_of_any_size(scale: float, limit: float) -> None:
    torch.manual_seed(0)
    running = Running(TokenGrid(6, 7, 2), 16)
    worst = 0.0
    for _ in range(300):
        tokens = torch.randperm(42)[: int(torch.randint(0, 20, ()))].sort().values
        new = torch.randn(len(tokens), 48)
        new[:, :16] *= scale
        running.change([tokens], new)
        worst = max(worst, running.error)
    assert worst < limit


def test_thousands_of_changes_of_one_token_do_not_drift() -> None:
    torch.manual_seed(0)
    running = Running(TokenGrid(4, 4, 1), 8)
    worst = 0.0
    for frame in range(3000):
        running.change([torch.tensor([5])], 2 * torch.randn(1, 24))
        if frame % 10 == 9:
            worst = max(worst, running.error)
    assert worst < 2e-6


def test_sums_are_renewed_before_they_overflow_or_cancel() -> None:
    torch.manual_seed(0)
    frame = TokenGrid(4, 4, 1)
    running = Running(frame, 4)
    row = torch.zeros(1, 12)
    row[:, 4:8] = 1.0
    running.qkv[:, :, :4] = 1.0  # all queries are alike
    running.change([torch.arange(16)], running.qkv[0].clone())
    for strength in (1.0, 1e3, -1e3, 1e3, 30.0, -30.0, 300.0, 0.0):
        key = row * strength
        running.change([torch.tensor([3])], key)
        assert torch.isfinite(running.out).all()
        assert running.error < 1e-5
        assert (running.state.turnover <= 2 * running.state.total).all()


def test_a_row_that_is_not_renewed_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.nn.eventful.exact_update._TURNOVER", 1e30)
    torch.manual_seed(0)
    running = Running(TokenGrid(4, 4, 1), 4)
    running.qkv[:, :, :4] = 1.0
    running.change([torch.arange(16)], running.qkv[0].clone())
    for strength in (5.0, -5.0):
        running.change([torch.tensor([3])], strength * torch.ones(1, 12))
    assert running.error > 1e-5


def test_what_is_counted_is_what_is_cheaper() -> None:
    torch.manual_seed(0)
    frame, dim = TokenGrid(6, 7, 2), 8
    running = Running(frame, dim)
    n, e = 42, sum(frame.positions) * dim
    assert running.operations.product == 2 * n * n * dim
    assert running.operations.position == n * e
    for m, products in ((5, 4 * 37 * 5 + 2 * 5 * n), (21, 2 * n * n), (42, 2 * n * n)):
        running.operations = Operations()
        running.state.turnover.zero_()  # no row is renewed
        running.change([torch.arange(m)], torch.randn(m, 24))
        assert running.operations.product == products * dim
        assert running.operations.position == (m if m == 5 else n) * e
    running.operations = Operations()
    running.change([torch.arange(0)], torch.randn(0, 24))
    assert running.operations.total == 0


def test_small_frames_are_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.nn.eventful.exact_update._OVERHEAD", 4_000_000)
    small, large = TokenGrid(12, 20, 5), TokenGrid(42, 42, 12)
    assert not ExactUpdate.renews(small, 60, 60, 160)
    assert ExactUpdate.renews(small, 100, 100, 160)
    assert not ExactUpdate.renews(large, 880, 880, 768)
    assert ExactUpdate.renews(large, 882, 882, 768)


@pytest.mark.parametrize("at_once", [1, 40, 200])
def test_heads_and_rows_in_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.nn.eventful.exact_update._SCORES", at_once)
    monkeypatch.setattr(
        "costream.nn.eventful.exact_update._rows", lambda columns: 1 + at_once // columns
    )
    torch.manual_seed(0)
    running = Running(TokenGrid(3, 5, 4), 16)
    for _ in range(20):
        tokens = torch.randperm(15)[: int(torch.randint(0, 7, ()))].sort().values
        running.change([tokens], torch.randn(len(tokens), 48))
        assert running.error < 1e-5


def test_products_in_half_precision_keep_sums_in_single() -> None:
    torch.manual_seed(0)
    running = Running(TokenGrid(4, 4, 2, products=torch.bfloat16), 8)
    assert running.error < 2e-2
    for _ in range(100):
        running.change([torch.randperm(16)[:3].sort().values], torch.randn(3, 24))
        assert running.error < 4e-2
    assert {t.dtype for t in running.state.tensors().values()} == {torch.float32}


def test_the_state_holds_no_square() -> None:
    tokens, heads, dim = 64 * 64, 12, 768
    with torch.device("meta"):
        state = ExactUpdate().init_state(1, TokenGrid(64, 64, heads), torch.empty(dim))
    assert isinstance(state, ExactState)
    numbers = sum(t.numel() for t in state.tensors().values())
    assert numbers == tokens * (dim + heads * (3 + 64 + 64))
