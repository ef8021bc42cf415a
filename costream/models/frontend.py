"""Frontends: the protocol and the registry.

A frontend turns items (frames, blocks of audio, skeletons) into tokens for a network. It is one
file: ``@frontend(name)`` above its class. Does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from costream.core.errors import ModelError
from costream.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

FRONTENDS: Registry[type[nn.Module]] = Registry("costream.models", "frontend")
frontend = FRONTENDS.register


class Frontend(Protocol):
    """A module from items to tokens, with weights only; streams hold state.

    Further attributes, by kind:

    Video and skeletons: ``prepare(item)`` returns an array for ``forward_step``.
    Video: ``box``, width and height that frames are fitted into; ``frames``, if a step takes
        several, which ``prepare`` then gets as VideoFrames.
    Audio: ``sample_rate_hz``, ``block`` (samples per step), ``forward_steps``,
        ``newest_spectrum``.
    Token-gated models: no state; only ``takes``, ``box``, ``prepare``, ``forward`` and
        ``count_macs``.
    """

    takes: str  # kind of source: "video", "skeleton", "audio" or "text"; features need none
    token_width: int

    def init_state(self, batch_size: int = 1) -> Any:
        """Return the initial state of a batch of streams."""

    def forward_step(self, x: Tensor, state: Any) -> Tensor:
        """Take one prepared item per stream, [B, ...]; return tokens [B, token_width]."""

    def count_macs(self) -> int:
        """Return the multiply-accumulates of a step of one stream."""


def frontend_class(name: str) -> type[nn.Module]:
    """Return the class of a frontend; ModelError for an unknown name."""
    if name not in FRONTENDS:
        raise ModelError(
            f"unknown frontend {name!r}",
            hint=f"known are {', '.join(FRONTENDS)}; the weights may need a newer costream",
        )
    return FRONTENDS.load(name)


def holds_tokens(name: str | None) -> bool:
    """Return whether a frontend can hold its tokens within a budget, without importing it."""
    entry = FRONTENDS.entries().get(name or "")
    return entry is not None and bool(entry.info.get("holds"))


def load_frontend(name: str, **arguments: Any) -> nn.Module:
    """Return a frontend with random weights.

    Raises ModelError for an unknown name and for arguments that the frontend does not take.
    """
    kind = frontend_class(name)
    try:
        return kind(**arguments)
    except ModelError:
        raise
    except Exception as error:  # a class with sizes from a file may raise anything
        raise ModelError(f"frontend {name!r} does not take these arguments ({error})") from error
