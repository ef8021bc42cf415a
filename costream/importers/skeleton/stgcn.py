"""Importer of checkpoints of the original ST-GCN (Yan et al., AAAI 2018)."""

from __future__ import annotations

import re
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
PAPER = "https://arxiv.org/abs/1801.07455"
DATA = SkeletonPreprocessing(
    window=300,
    rate_hz=30.0,
    space="none",
    picture="kinetics",
    score="difference",
    min_score=0.0,
)
_BLOCKS = block_naming(
    lambda number: f"st_gcn_networks.{number - 1}.",
    {
        # Its graph convolution has no normalisation: in other implementations, that at the start
        # of its temporal part, and the ReLU after it, belong to the graph convolution.
        "gcn.bn.": "tcn.0.",
        "tcn.t_conv.": "tcn.2.",
        "tcn.bn.": "tcn.3.",
        "residual.t_conv.": "residual.0.",
        "residual.bn.": "residual.1.",
    },
    {"fc.": "fcn."},
)


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of the original ST-GCN."""
    return any(name.startswith("st_gcn_networks.0.") for name in tensors)


@importer("st-gcn", summary="original ST-GCN", detect=detect, keys=KEYS, order=8)
def convert(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    tensors = with_counters(foreign.tensors)
    dialect = Dialect(
        _theirs,
        "stgcn",
        stacked=True,
        inner_residual=False,
        head_dims=4,
        shared_norm=True,
        partition="distance",
    )
    sizes = read_sizes(tensors, dialect)
    setting = complete_setting(sizes, dialect, DATA, config)
    weights = take(tensors, sizes, dialect, setting.persons)
    return setting.imported(weights, PAPER)


def _theirs(ours: str) -> str:
    graph = re.fullmatch(r"layers\.layer(\d+)\.gcn\.(A|graph_attn)", ours)
    if graph is None:
        return _BLOCKS(ours)
    return "A" if graph[2] == "A" else f"edge_importance.{int(graph[1]) - 1}"
