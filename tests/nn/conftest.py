"""The oracle: torch's own encoder over every window."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from costream.nn.block import EncoderConfig
from costream.nn.encoder import Encoder

BuildEncoder = Callable[..., Encoder]
Oracle = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def build_encoder() -> BuildEncoder:
    """An encoder whose every parameter matters: biases and norms are not 0 and 1."""

    def build(
        depth: int = 1,
        window: int = 7,
        embed_dim: int = 16,
        heads: int = 4,
        feedforward: int = 24,
        logit_scale: float = 1.0,
        **options: object,
    ) -> Encoder:
        config = EncoderConfig(embed_dim, heads, feedforward, depth, window, **options)
        encoder = Encoder(config).eval()
        for name, parameter in encoder.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            else:
                nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
        for block in encoder.layers:
            block.self_attn.in_proj_weight.data[:embed_dim] *= logit_scale
        return encoder

    return build


@pytest.fixture
def newest_of_windows() -> Oracle:
    """Newest output of ``nn.TransformerEncoder``, float64, for the window ending at each row."""

    def oracle(encoder: Encoder, x: Tensor, ends: list[int] | None = None) -> Tensor:
        reference = torch_twin(encoder)
        n, x = encoder.window, x.double()
        ends = list(range(x.shape[1])) if ends is None else ends
        rows = [reference(x[:, max(0, t - n + 1) : t + 1])[:, -1] for t in ends]
        return torch.stack(rows, 1)

    return oracle


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
