from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from costream.nn.eventful.attention import RelativePosition
from kit.eventful_nets import randomise


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
