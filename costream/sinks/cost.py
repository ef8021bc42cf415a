"""What a step of a model that computes some tokens has cost, as a person reads it."""

from __future__ import annotations

from costream.records import Compute

# No step is as cheap as so many operations, and none takes so many milliseconds.
_LEAST_MACS = 1e6


def share_of_dense(compute: Compute) -> float:
    """Give what a step cost over what the dense model costs; 1 where that is not known."""
    return compute.macs / compute.dense_macs if compute.dense_macs > 0 else 1.0


def tokens_text(compute: Compute, most: int | None) -> str:
    """Give ``256 of 1020 tokens``, ``most`` being those of a frame; '' without tokens."""
    if compute.tokens is None:
        return ""
    return f"{compute.tokens} tokens" if most is None else f"{compute.tokens} of {most} tokens"


def share_text(compute: Compute) -> str:
    """Give ``31 % of dense``."""
    return f"{100 * share_of_dense(compute):.0f} % of dense"


def budget_text(compute: Compute) -> str:
    """Give ``budget 40 ms`` or ``budget 20 GMAC``; '' without a budget."""
    if compute.budget is None:
        return ""
    if compute.budget < _LEAST_MACS:
        return f"budget {compute.budget:.3g} ms"
    return f"budget {compute.budget / 1e9:.3g} GMAC"
