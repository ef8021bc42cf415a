"""Small backbones with random weights, frames that are like those of a video, and policies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costream.models.eventful.backbone import ViTDetBackbone
from kit import paths

REFS = paths.REFS / "eventful"
NEEDS = "needs the reference arrays: put them at ../shared/refs/eventful"


def randomise(module: nn.Module, scale: float = 1.0) -> nn.Module:
    """Make every parameter matter; ``scale`` multiplies queries, and so the logits."""
    for name, parameter in module.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, mean=float("weight" in name), std=0.1)
        elif parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            nn.init.normal_(parameter, std=0.1)
        if name.endswith("qkv.weight"):
            parameter.data[: len(parameter) // 3] *= scale
    return module.eval()


def small_backbone(
    variant: str = "exact", size: tuple[int, int] = (6, 8), scale: float = 1.0, **options: object
) -> ViTDetBackbone:
    settings = {
        "dim": 16,
        "heads": 2,
        "depth": 2,
        "size": size,
        "window": (3, 3),
        "global_blocks": (1,),
        "position_size": (4, 4),
        "mlp_ratio": 2,
    }
    torch.manual_seed(0)
    return randomise(ViTDetBackbone(**settings | options, variant=variant), scale)  # type: ignore


def video(frames: int, *shape: int, busy: float = 0.2) -> Tensor:
    """Frames [T, *shape, D]: a random walk of which a share of the tokens moves at each step."""
    x = torch.randn(shape)
    out = []
    for _ in range(frames):
        moves = torch.rand(shape[:-1]) < busy
        x = 0.95 * x + moves[..., None] * torch.randn(shape)
        out.append(x)
    return torch.stack(out)


class Given:
    """Chooses the same tokens at every gate."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def choose(self, errors: Tensor) -> Tensor:
        return self.tokens


class Recorded:
    """Notes what a policy chooses, or chooses what was noted."""

    def __init__(self, policy: object = None, noted: list[Tensor] | None = None) -> None:
        self.policy, self.noted = policy, [] if noted is None else list(noted)

    def choose(self, errors: Tensor) -> Tensor:
        if self.policy is None:
            return self.noted.pop(0)
        self.noted.append(self.policy.choose(errors))  # type: ignore[attr-defined]
        return self.noted[-1]
