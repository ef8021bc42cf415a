"""Importer of pyskl checkpoints (Duan et al., 2022): ST-GCN and ST-GCN++.

ST-GCN++ learns the whole graph and has temporal convolutions with several dilations.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from costream.importers.base import importer
from costream.importers.config import ImportSettings
from costream.importers.pickles import ForeignCheckpoint
from costream.importers.rules import ImportedNetwork
from costream.importers.skeleton.common import (
    SKELETON_KEYS,
    Dialect,
    Naming,
    SkeletonPreprocessing,
    block_naming,
    complete_setting,
    read_sizes,
    take,
    with_counters,
)

KEYS = SKELETON_KEYS
PAPER = "https://arxiv.org/abs/2205.09443"
DATA = SkeletonPreprocessing(
    window=100,
    rate_hz=None,
    space="pyskl",
    picture="pyskl",
    score="mean",
    min_score=0.01,
)
_BLOCK = {
    "gcn.graph_attn": "gcn.PA",
    "gcn.gcn_residual.": "gcn.down.",
    "tcn.t_conv.": "tcn.conv.",
    "residual.t_conv.": "residual.conv.",
}


def detect(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the names are those of pyskl's graph networks."""
    return any(name.startswith("backbone.gcn.0.") for name in tensors)


@importer("pyskl", summary="ST-GCN or ST-GCN++ of pyskl", detect=detect, keys=KEYS, order=10)
def convert(foreign: ForeignCheckpoint, config: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    tensors = with_counters(foreign.tensors)
    plus = any(".tcn.branches." in name for name in tensors)
    dialect = Dialect(
        _naming(tensors),
        "stgcn",
        stacked=True,
        inner_residual=plus,
        branches=plus,
        graph="fixed" if plus else "both",
        shared_norm=True,
        partition="in_out" if plus else "distance",
    )
    sizes = read_sizes(tensors, dialect)
    setting = complete_setting(sizes, dialect, DATA, config)
    weights = take(tensors, sizes, dialect, setting.persons)
    if plus:
        ones = torch.ones_like(weights["layers.layer1.gcn.A"])
        weights |= {f"{block.at}gcn.graph_attn": ones.clone() for block in sizes.blocks}
    return setting.imported(weights, PAPER)


def _naming(tensors: Mapping[str, Tensor]) -> Naming:
    # MMAction2, which adopted pyskl's networks, names the classifier differently.
    head = "cls_head.fc." if "cls_head.fc.weight" in tensors else "cls_head.fc_cls."
    others = {"data_bn.": "backbone.data_bn.", "fc.": head}
    return block_naming(lambda number: f"backbone.gcn.{number - 1}.", _BLOCK, others)
