"""Cost of a step of a token-gated model as text."""

from __future__ import annotations

from costream.records import Compute

# Smaller budgets are milliseconds, larger ones MACs: no step is that cheap or takes that long.
_LEAST_MACS = 1e6


def share_of_dense(compute: Compute) -> float:
    """Return the cost of a step as a share of the dense model's; 1 if that is unknown."""
    return compute.macs / compute.dense_macs if compute.dense_macs > 0 else 1.0


def tokens_text(compute: Compute, most: int | None) -> str:
    """Return ``256 of 1020 tokens``; ``most``: tokens of a frame; '' without tokens."""
    if compute.tokens is None:
        return ""
    return f"{compute.tokens} tokens" if most is None else f"{compute.tokens} of {most} tokens"


def share_text(compute: Compute) -> str:
    """Return ``31 % of dense``."""
    return f"{100 * share_of_dense(compute):.0f} % of dense"


def budget_text(compute: Compute) -> str:
    """Return ``budget 40 ms`` or ``budget 20 GMAC``; '' without a budget."""
    if compute.budget is None:
        return ""
    if compute.budget < _LEAST_MACS:
        return f"budget {compute.budget:.3g} ms"
    return f"budget {compute.budget / 1e9:.3g} GMAC"
