"""Importer of checkpoints of the original ST-GCN (Yan et al., AAAI 2018)."""

from __future__ import annotations

import re

from costream.models.skeleton.dialects.importer import SKELETON_IMPORTER, convert_skeleton
from costream.models.skeleton.dialects.tensors import Dialect, SkeletonPreprocessing, block_naming
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_prefix, importer
from costream.weights_io.tensor_rules import ImportedNetwork

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


def _theirs(ours: str) -> str:
    graph = re.fullmatch(r"layers\.layer(\d+)\.gcn\.(A|graph_attn)", ours)
    if graph is None:
        return _BLOCKS(ours)
    return "A" if graph[2] == "A" else f"edge_importance.{int(graph[1]) - 1}"


_DIALECT = Dialect(
    _theirs,
    "stgcn",
    "https://arxiv.org/abs/1801.07455",
    SkeletonPreprocessing(space="none"),
    stacked=True,
    inner_residual=False,
    head_dims=4,
    shared_norm=True,
    partition="distance",
)


@importer(
    "st-gcn",
    summary="original ST-GCN",
    detect=has_prefix("st_gcn_networks.0."),
    **SKELETON_IMPORTER,
    order=8,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    return convert_skeleton(foreign, _DIALECT, settings)
