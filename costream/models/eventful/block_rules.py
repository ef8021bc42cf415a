"""Rules of the tensors of transformer blocks, for importers."""

from __future__ import annotations

from dataclasses import dataclass

from costream.weights_io.tensor_rules import TensorRule, linear, norm


@dataclass(frozen=True)
class EventfulBlockNames:
    """Names of the layers of a block in a checkpoint, up to ``.weight``."""

    query_key_value: tuple[str, str, str]
    projection: str
    norms: tuple[str, str]  # before attention, before the feed-forward
    feed_forward: tuple[str, str]


def eventful_block_rules(ours: str, theirs: EventfulBlockNames, dim: int) -> list[TensorRule]:
    """Return the rules of an ``EventfulBlock`` called ``ours``, of width ``dim``."""
    rules = []
    for end, shape in (("weight", (dim, dim)), ("bias", (dim,))):
        parts = tuple(f"{name}.{end}" for name in theirs.query_key_value)
        rules.append(TensorRule(f"{ours}.qkv.{end}", parts, shape))
    rules += norm(f"{ours}.input_layer_norm", theirs.norms[0], dim)
    rules += linear(f"{ours}.projection", theirs.projection, dim, dim)
    rules += norm(f"{ours}.mlp_layer_norm", theirs.norms[1], dim)
    rules += linear(f"{ours}.mlp_1", theirs.feed_forward[0], 4 * dim, dim)
    return rules + linear(f"{ours}.mlp_2", theirs.feed_forward[1], dim, 4 * dim)
