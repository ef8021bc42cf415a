"""Gates, relative positions, attention within windows and its exact update among all tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.eventful.attention import (
    TokenGrid,
    TokenWindows,
    WindowAttention,
    attend_frame,
    attend_frame_windows,
)
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.exact_update import ExactState, ExactUpdate
from costream.nn.eventful.gates import ChosenTokens, pass_difference, pass_tokens
from costream.nn.eventful.policies import AboveThreshold, RecordedPolicy, TopShare, TopTokens
from costream.nn.eventful.positions import RelativePosition
from costream.nn.eventful.token_gate import TokenGate
from kit.eventful_nets import Given, randomise


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(-1, 40))
def test_the_largest_errors_are_chosen(errors: list[float], count: int) -> None:
    tensor = torch.tensor(errors, dtype=torch.float64)
    chosen = TopTokens(count).choose(tensor).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(max(count, 0), len(errors))
    rest = [e for k, e in enumerate(errors) if k not in chosen]
    assert not rest or not chosen or max(rest) <= min(errors[k] for k in chosen)


def test_shares_are_rounded_down_and_thresholds_strict() -> None:
    errors = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    assert TopShare(0.5).choose(errors).tolist() == [3, 4]
    assert TopShare(1.0).choose(errors).tolist() == [0, 1, 2, 3, 4]
    assert AboveThreshold(3.0).choose(errors).tolist() == [3, 4]
    assert AboveThreshold(9.0).choose(errors).tolist() == []


def test_a_gate_passes_what_has_moved_away_from_what_it_last_let_pass() -> None:
    reference, operations = torch.zeros(1, 4, 2), Operations()
    x = torch.arange(8.0).view(1, 4, 2)
    chosen = pass_tokens(x, reference, [True], TopTokens(1), operations)
    assert chosen.counts == [4]
    assert chosen.places is None
    assert operations.total == 0
    slow = x.clone()
    for frame in range(1, 6):  # token 2 moves slowly, token 0 jumps once
        slow[0, 2] += 0.25
        slow[0, 0] += float(frame == 2)
        chosen = pass_tokens(slow, reference, [False], AboveThreshold(1.0), operations)
        expected = {2: [0], 3: [2]}.get(frame, [])
        assert chosen.tokens[0].tolist() == expected
        assert torch.equal(chosen.take(slow), slow[0, expected])
    assert operations.total == operations.gate == 5 * 8
    slow += 7
    assert float(reference.max()) == 7  # a copy, not the frame itself


def test_a_learned_policy_passes_the_same_tokens_at_all_gates_of_a_frame() -> None:
    torch.manual_seed(0)
    learned, spent = TokenGate(6).requires_grad_(False), Operations()
    with torch.no_grad():
        learned.content.weight[:, 0], learned.score[0].weight[:, :8] = 1, 1
        learned.score[2].weight.fill_(1)  # the larger the first channel, the more a token matters
    x, reference = torch.randn(1, 9, 6), torch.zeros(1, 9, 6)
    x[0, [2, 5], 0] += 9
    policy = RecordedPolicy(TopTokens(2), 9, learned)
    chosen = pass_tokens(x, reference, [False], policy, spent)
    assert chosen.tokens[0].tolist() == [2, 5]
    assert spent.gate == 9 * sum(p.numel() for p in learned.parameters())
    others = pass_tokens(x.flip(1) * 100, torch.zeros(1, 9, 6), [False], policy, spent)
    assert others.tokens[0].tolist() == [2, 5]
    assert policy.updated.nonzero().flatten().tolist() == [2, 5]
    by_distance = RecordedPolicy(TopTokens(9), 9)
    assert len(pass_tokens(x, reference, [False], by_distance, spent).tokens[0]) == 9


def test_a_gate_that_remembers_all_never_sees_slow_changes() -> None:
    reference, x = torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)
    for _ in range(20):
        x = x + 0.25
        chosen = pass_tokens(x, reference, [False], AboveThreshold(1.0), Operations(), True)
        assert chosen.counts == [0]
    assert torch.equal(reference, x)


def test_streams_choose_for_themselves() -> None:
    x, reference, buffer = torch.randn(3, 4, 2), torch.zeros(3, 4, 2), torch.zeros(3, 4, 2)
    chosen = pass_tokens(
        x, reference, [False, True, False], Given(torch.tensor([1, 3])), Operations()
    )
    assert chosen.counts == [2, 4, 2]
    rows = chosen.take(x)
    assert [len(part) for part in chosen.split(rows)] == [2, 4, 2]
    chosen.put(rows, buffer)
    expected = x.clone()
    expected[[0, 2, 0, 2], [0, 0, 2, 2]] = 0
    assert torch.equal(buffer, expected)
    assert torch.equal(reference, expected)


@pytest.mark.parametrize("columns", [[], [1], [0, 2]])
def test_a_delta_gate_gives_values_and_how_they_changed(columns: list[int]) -> None:
    x, reference, operations = torch.randn(2, 3, 4), torch.randn(2, 3, 4), Operations()
    before, index = reference.clone(), torch.tensor(columns, dtype=torch.int64)
    values, change = pass_difference(x, reference, index, operations)
    assert torch.equal(values, x[:, columns])
    assert torch.equal(change, x[:, columns] - before[:, columns])
    before[:, columns] = x[:, columns]
    assert torch.equal(reference, before)
    assert operations.gate == 24


def test_rows_of_the_table_at_its_own_size() -> None:
    position = randomise(RelativePosition((3, 4), 2))
    y, x = position.matrices(3, 4)
    for i in range(3):
        for j in range(3):
            assert torch.equal(y[i, j], position.y_embedding[i - j + 2])
    for i in range(4):
        for j in range(4):
            assert torch.equal(x[i, j], position.x_embedding[i - j + 3])


def test_each_axis_has_its_own_size() -> None:
    position = randomise(RelativePosition((5, 5), 2))
    y, x = position.matrices(4, 7)
    assert (y.shape, x.shape) == ((4, 4, 2), (7, 7, 2))
    images = position.matrices(5, 5)[0].permute(2, 0, 1)[None]
    expected = F.interpolate(images, (4, 4), mode="bicubic", align_corners=False)
    torch.testing.assert_close(y, expected[0].permute(1, 2, 0))


def test_the_linear_rule_resizes_the_table() -> None:
    position = randomise(RelativePosition((5, 5), 2, "linear"))
    y, _ = position.matrices(4, 5)
    table = F.interpolate(position.y_embedding.T[None], size=7, mode="linear")[0].T
    expected = torch.stack([torch.stack([table[i - j + 3] for j in range(4)]) for i in range(4)])
    torch.testing.assert_close(y, expected)
    bicubic = RelativePosition((5, 5), 2)
    bicubic.load_state_dict(position.state_dict())
    assert (bicubic.matrices(4, 5)[0] - y).abs().max() > 1e-3


def test_pooled_keys_have_mean_positions() -> None:
    position = randomise(RelativePosition((4, 6), 2, pool=2))
    whole = RelativePosition((4, 6), 2)
    whole.load_state_dict(position.state_dict())
    for pooled, every in zip(position.matrices(4, 6), whole.matrices(4, 6), strict=True):
        torch.testing.assert_close(pooled, (every[:, ::2] + every[:, 1::2]) / 2)
    with pytest.raises(ValueError, match="3 x 6 tokens cannot be pooled by 2"):
        position.matrices(3, 6)


def test_of_all_queries_and_of_some() -> None:
    position = randomise(RelativePosition((4, 3), 5))
    q = torch.randn(2, 4, 3, 2, 5)
    y, x = position(q)
    r_y, r_x = position.matrices(4, 3)
    for n in range(12):
        row, column = divmod(n, 3)
        expected = torch.einsum("bhe,ke->bhk", q[:, row, column], r_y[row])
        torch.testing.assert_close(y[:, :, n], expected)
        expected = torch.einsum("bhe,ke->bhk", q[:, row, column], r_x[column])
        torch.testing.assert_close(x[:, :, n], expected)
    tokens = torch.tensor([1, 5, 11])
    some = position.of_tokens(q[1].flatten(0, 1)[tokens], tokens, 4, 3)
    torch.testing.assert_close(some[0], y[1][:, tokens])
    torch.testing.assert_close(some[1], x[1][:, tokens])


def test_new_weights_are_noticed() -> None:
    position = randomise(RelativePosition((4, 4), 2))
    before = position.matrices(6, 6)[0].clone()
    assert position.matrices(6, 6)[0] is position.matrices(6, 6)[0]
    position.load_state_dict({k: 2 * v for k, v in position.state_dict().items()})
    torch.testing.assert_close(position.matrices(6, 6)[0], 2 * before)


def test_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'nearest' is not one of"):
        RelativePosition((4, 4), 2, "nearest")


def brute_force(
    qkv: Tensor, windows: TokenWindows, position: RelativePosition, bias: Tensor
) -> Tensor:
    """Every query by itself over the keys of its window, those beyond the frame too."""
    (h, w), dim = windows.size, qkv.shape[1] // 3
    e = dim // windows.heads
    out = torch.zeros(len(qkv), dim, dtype=torch.float64)
    grid = qkv.double().view(windows.height, windows.width, 3, windows.heads, e)
    fill = bias.double().view(3, windows.heads, e)
    y_table, x_table = position.y_embedding.double(), position.x_embedding.double()
    for y in range(windows.height):
        for x in range(windows.width):
            for head in range(windows.heads):
                q = grid[y, x, 0, head]
                scores, values = [], []
                for i in range(y // h * h, y // h * h + h):
                    for j in range(x // w * w, x // w * w + w):
                        inside = i < windows.height and j < windows.width
                        _, k, v = (grid[i, j] if inside else fill)[:, head]
                        along = y_table[y - i + h - 1] + x_table[x - j + w - 1]
                        scores.append(q @ k / e**0.5 + q @ along)
                        values.append(v)
                weights = torch.stack(scores).softmax(0)
                place = y * windows.width + x
                out[place, head * e : head * e + e] = weights @ torch.stack(values)
    return out


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_query_attends_to_its_window(
    height: int, width: int, h: int, w: int, skip: bool
) -> None:
    torch.manual_seed(height * 7 + width)
    windows = TokenWindows(height, width, 2, (h, w))
    position, bias = randomise(RelativePosition((h, w), 3)), torch.randn(18)
    n = height * width
    qkv, attention = torch.randn(1, n, 18), WindowAttention(skip)
    state, buffer = attention.init_state(1, windows, torch.zeros(6)), torch.zeros(1, n, 18)
    tokens = torch.arange(n)
    for _ in range(3):
        new = torch.randn(len(tokens), 18)
        qkv[0, tokens] = new
        chosen = ChosenTokens((tokens,), (False,), tokens)
        arguments = windows, position, bias, Operations()
        out = attention.step(buffer, new, chosen, state, *arguments)[0]
        expected = brute_force(qkv[0], windows, position, bias)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
        tokens = torch.randperm(n)[: n // 3].sort().values
    whole = attend_frame_windows(qkv.expand(2, -1, -1), windows, position, bias)
    torch.testing.assert_close(whole[1].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("skip", "computed"), [(True, 2), (False, 6)])
def test_only_windows_with_a_changed_token_cost_anything(skip: bool, computed: int) -> None:
    windows, operations = TokenWindows(6, 9, 2, (3, 3)), Operations()
    attention, position = WindowAttention(skip), RelativePosition((3, 3), 3)
    state, buffer = attention.init_state(1, windows, torch.zeros(6)), torch.zeros(1, 54, 18)
    tokens = torch.tensor([0, 10, 53])
    chosen = ChosenTokens((tokens,), (False,), tokens)
    new = torch.randn(3, 18)
    attention.step(buffer, new, chosen, state, windows, position, torch.zeros(18), operations)
    assert operations.product == 2 * computed * 9 * 9 * 6
    assert operations.position == computed * 9 * 6 * 6
    assert operations.add == 2 * 2 * computed * 81
    assert operations.bias == 0


def test_windows_that_go_beyond_the_frame() -> None:
    windows = TokenWindows(4, 5, 1, (3, 3))
    assert (windows.counts, windows.padded) == ((2, 2), 36)
    assert windows.tokens().tolist() == [
        [0, 1, 2, 5, 6, 7, 10, 11, 12],
        [3, 4, -1, 8, 9, -1, 13, 14, -1],
        [15, 16, 17, -1, -1, -1, -1, -1, -1],
        [18, 19, -1, -1, -1, -1, -1, -1, -1],
    ]
    assert windows.of_tokens()[[0, 4, 15, 19]].tolist() == [0, 1, 2, 3]


def chosen_tokens(tokens: list[Tensor], frame: TokenGrid, fresh: bool = False) -> ChosenTokens:
    places = torch.cat([t + stream * frame.tokens for stream, t in enumerate(tokens)])
    return ChosenTokens(tuple(tokens), (fresh,) * len(tokens), places)


@pytest.fixture(autouse=True, scope="module")
def _small_frames() -> Iterator[None]:
    """Let small frames be corrected, which would be computed anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("costream.nn.eventful.exact_update.OVERHEAD", 0)
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


@pytest.mark.long
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
    monkeypatch.setattr("costream.nn.eventful.exact_update.TURNOVER", 1e30)
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


def test_small_frames_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.nn.eventful.exact_update.OVERHEAD", 4_000_000)
    small, large = TokenGrid(12, 20, 5), TokenGrid(42, 42, 12)
    assert not ExactUpdate.renews(small, 60, 60, 160)
    assert ExactUpdate.renews(small, 100, 100, 160)
    assert not ExactUpdate.renews(large, 880, 880, 768)
    assert ExactUpdate.renews(large, 882, 882, 768)


@pytest.mark.parametrize("at_once", [1, 40, 200])
def test_heads_and_rows_in_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costream.nn.eventful.exact_update.SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(
        "costream.nn.eventful.exact_update.rows_at_once", lambda columns: 1 + at_once // columns
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
