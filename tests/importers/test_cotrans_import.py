"""CoTrans checkpoints of both dialects, against CoOadTR's own sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

D, K, WIDTH = 192, 10, 128
# the parts of a block: attention, norm1, linear1, linear2, norm2
OLD = (
    ["3.0.1", "3.1.fn", "3.2.1.0", "3.2.1.3", "3.3.fn"],
    ["3.0.0.1", "3.0.1.fn.0", "3.0.1.fn.1.fn.0", "3.0.1.fn.1.fn.3", "3.0.1.fn.2"],
    ["3.1.fn.0.1", "3.1.fn.1.fn", "3.1.fn.2.1.0", "3.1.fn.2.1.3", "3.1.fn.3.fn"],
)


def single(at: str) -> list[str]:
    ff = f"{at}1._ff_block.1"
    names = [f"{at}1.norm1.fn", f"{ff}.linear1", f"{ff}.linear2", f"{at}1.norm2.fn"]
    return [f"{at}0.self_attn", *names]


def retroactive(at: str) -> list[str]:
    ff = f"{at}1.fn._ff_block.fn"
    names = [f"{at}1.fn.norm1", f"{ff}.linear1", f"{ff}.linear2", f"{at}1.fn.norm2"]
    return [f"{at}0.self_attn", *names]


LAYOUTS = {
    ("0.17", 1): ([OLD[0]], "4.fn", "5"),
    ("0.17", 2): (list(OLD[1:]), "4.fn", "5"),
    ("1.x", 1): ([single("2.")], "3.fn", "4"),
    ("1.x encoder", 1): ([single("2.layers.0.")], "3.fn", "4"),
    ("1.x", 2): ([retroactive("2.layers.0."), single("2.layers.1.fn.")], "3.fn", "4"),
}


def checkpoint(dialect: str, depth: int, feedforward: int) -> dict[str, Tensor]:
    blocks, last, head = LAYOUTS[dialect, depth]
    weights: dict[str, Tensor] = {"1.pe.weight": 0.1 * torch.randn(192, D)}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = torch.randn(rows, columns) / columns**0.5
        weights[f"{name}.bias"] = 0.3 * torch.randn(rows)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + 0.3 * torch.randn(D)
        weights[f"{name}.bias"] = 0.3 * torch.randn(D)

    linear("0", D, WIDTH)
    for attention, norm1, linear1, linear2, norm2 in blocks:
        weights[f"{attention}.in_proj_weight"] = torch.randn(3 * D, D) / D**0.5
        weights[f"{attention}.in_proj_bias"] = 0.3 * torch.randn(3 * D)
        linear(f"{attention}.out_proj", D, D)
        linear(linear1, feedforward, D)
        linear(linear2, D, feedforward)
        norm(norm1)
        norm(norm2)
    norm(last)
    linear(head, K, D)
    return weights


@pytest.mark.parametrize("feedforward", [192, 384])
@pytest.mark.parametrize(("dialect", "depth"), LAYOUTS)
@torch.inference_mode()
def test_every_dialect_gives_the_window_network(
    load: Callable[..., Any], dialect: str, depth: int, feedforward: int
) -> None:
    weights = checkpoint(dialect, depth, feedforward)
    card, network = load(weights, labels="gtzan", window=10)
    assert (card.architecture, card.rate_hz, card.labels[0]) == ("cotrans", 4.0, "blues")
    assert card.task == "sound classification"
    assert card.arguments["feedforward"] == feedforward
    assert card.limits == "Not in the checkpoint, taken from the paper: num_heads 16."
    rows = torch.randn(1, 24, WIDTH)
    state = network.init_state()
    out = torch.stack([network.forward_step(row, state).logits[0] for row in rows.unbind(1)])
    blocks, last, head = LAYOUTS[dialect, depth]
    for t in (9, 17, 23):
        torch.testing.assert_close(
            out[t], window_logits(weights, blocks, last, head, rows[0], t, 10), rtol=0, atol=3e-5
        )


def window_logits(
    w: dict[str, Tensor],
    blocks: list[list[str]],
    last: str,
    head: str,
    rows: Tensor,
    t: int,
    window: int,
) -> Tensor:
    """Logits after row ``t``, by torch's own layers over the newest rows."""
    times = torch.arange(t - window + 1, t + 1)
    x = torch.nn.functional.linear(rows[times], w["0.weight"], w["0.bias"])
    x = (x + w["1.pe.weight"][times % 192])[None]
    for attention, norm1, linear1, linear2, norm2 in blocks:
        feedforward = len(w[f"{linear1}.weight"])
        layer = torch.nn.TransformerEncoderLayer(
            D, 16, feedforward, 0.0, "gelu", batch_first=True
        ).eval()
        names = zip(
            ("self_attn", "norm1", "linear1", "linear2", "norm2"),
            (attention, norm1, linear1, linear2, norm2),
            strict=True,
        )
        ours = {
            f"{name}.{k.removeprefix(f'{their}.')}": v
            for name, their in names
            for k, v in w.items()
            if k.startswith(f"{their}.") and k.count(".") - their.count(".") <= 2
        }
        layer.load_state_dict({k: v for k, v in ours.items() if k in layer.state_dict()})
        x = layer(x)
    norm = torch.layer_norm(x[0, -1], (D,), w[f"{last}.weight"], w[f"{last}.bias"])
    return torch.nn.functional.linear(norm, w[f"{head}.weight"], w[f"{head}.bias"])


def test_heads_and_window_of_the_paper_are_taken_where_nobody_says_more(
    load: Callable[..., Any],
) -> None:
    weights = checkpoint("1.x", 1, 192)
    card, _ = load(weights, labels="gtzan")
    assert (card.arguments["num_heads"], card.arguments["window"]) == (16, 120)
    assert "num_heads 16, window 120" in card.limits
    card, _ = load(weights, labels="gtzan", num_heads=8, window=60)
    assert (card.arguments["num_heads"], card.arguments["window"], card.limits) == (8, 60, "")
