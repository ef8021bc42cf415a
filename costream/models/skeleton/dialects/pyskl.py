"""Importer of pyskl checkpoints (Duan et al., 2022): ST-GCN and ST-GCN++.

ST-GCN++ learns the whole graph and has temporal convolutions with several dilations.
"""

from __future__ import annotations

from costream.models.skeleton.dialects.importer import SKELETON_IMPORTER, convert_skeleton
from costream.models.skeleton.dialects.tensors import Dialect, SkeletonPreprocessing, block_naming
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_prefix, importer
from costream.weights_io.tensor_rules import ImportedNetwork

PAPER = "https://arxiv.org/abs/2205.09443"
DATA = SkeletonPreprocessing(
    window=100,
    rate_hz=None,
    space="pyskl",
    image="pyskl",
    score="mean",
    min_score=0.01,
)
_BLOCK = {
    "gcn.graph_attn": "gcn.PA",
    "gcn.gcn_residual.": "gcn.down.",
    "tcn.t_conv.": "tcn.conv.",
    "residual.t_conv.": "residual.conv.",
}


@importer(
    "pyskl",
    summary="ST-GCN or ST-GCN++ of pyskl",
    detect=has_prefix("backbone.gcn.0."),
    **SKELETON_IMPORTER,
    order=10,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    tensors = foreign.tensors
    plus = any(".tcn.branches." in name for name in tensors)
    # MMAction2, which adopted pyskl's networks, names the classifier differently.
    head = "cls_head.fc." if "cls_head.fc.weight" in tensors else "cls_head.fc_cls."
    others = {"data_bn.": "backbone.data_bn.", "fc.": head}
    dialect = Dialect(
        block_naming(lambda number: f"backbone.gcn.{number - 1}.", _BLOCK, others),
        "stgcn",
        PAPER,
        DATA,
        stacked=True,
        inner_residual=plus,
        branches=plus,
        graph="fixed" if plus else "both",
        shared_norm=True,
        partition="in_out" if plus else "distance",
    )
    return convert_skeleton(foreign, dialect, settings)
