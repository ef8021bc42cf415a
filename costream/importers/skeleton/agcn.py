"""Importer of 2s-AGCN checkpoints (Shi et al., CVPR 2019): the joint and bone stream networks.

Their arithmetic is that of AGCN in continual-skeletons. The fixed part of the graph is not stored;
it follows from the joint layout.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from costream.importers.base import importer
from costream.importers.config import ImportSettings
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork
from costream.importers.skeleton.common import (
    SKELETON_KEYS,
    Dialect,
    SkeletonPreprocessing,
    block_naming,
    complete_setting,
    read_sizes,
    take,
    with_counters,
)

KEYS = SKELETON_KEYS
PAPER = "https://arxiv.org/abs/1805.07694"
DATA = SkeletonPreprocessing(
    window=300,
    rate_hz=30.0,
    space="ntu",
    picture="kinetics",
    score="difference",
    min_score=0.0,
)
_theirs = block_naming(
    lambda number: f"l{number}.",
    {
        "gcn.graph_attn": "gcn1.PA",
        "gcn.g_conv.": "gcn1.conv_d.",
        "gcn.a_conv.": "gcn1.conv_a.",
        "gcn.b_conv.": "gcn1.conv_b.",
        "gcn.gcn_residual.": "gcn1.down.",
        "gcn.": "gcn1.",
        "tcn.t_conv.": "tcn1.conv.",
        "tcn.": "tcn1.",
        "residual.t_conv.": "residual.conv.",
    },
    {},
)


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of 2s-AGCN."""
    return any(name.startswith("l1.gcn1.") for name in tensors)


@importer("2s-agcn", summary="a stream of 2s-AGCN", detect=detect, keys=KEYS, order=9)
def convert(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    tensors = with_counters(foreign.tensors)
    dialect = Dialect(_theirs, "agcn", graph="learned")
    sizes = read_sizes(tensors, dialect)
    setting = complete_setting(sizes, dialect, DATA, config)
    weights = take(tensors, sizes, dialect, setting.persons)
    fixed = setting.graph()
    weights |= {f"{block.at}gcn.A": fixed.clone() for block in sizes.blocks}
    return setting.imported(weights, PAPER)
