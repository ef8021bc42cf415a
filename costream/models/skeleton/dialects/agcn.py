"""Importer of 2s-AGCN checkpoints (Shi et al., CVPR 2019): the joint and bone stream networks.

Their arithmetic is that of AGCN in continual-skeletons. The fixed part of the graph is not stored;
it follows from the joint layout.
"""

from __future__ import annotations

from costream.models.skeleton.dialects.importer import SKELETON_IMPORTER, convert_skeleton
from costream.models.skeleton.dialects.tensors import Dialect, block_naming
from costream.weights_io.foreign import ForeignCheckpoint
from costream.weights_io.import_settings import ImportSettings
from costream.weights_io.importer import has_prefix, importer
from costream.weights_io.tensor_rules import ImportedNetwork

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
_DIALECT = Dialect(_theirs, "agcn", "https://arxiv.org/abs/1805.07694", graph="learned")


@importer(
    "2s-agcn",
    summary="a stream of 2s-AGCN",
    detect=has_prefix("l1.gcn1."),
    **SKELETON_IMPORTER,
    order=9,
)
def convert(foreign: ForeignCheckpoint, settings: ImportSettings) -> ImportedNetwork:
    """Return the network; ModelError for missing or unused tensors and unknown settings."""
    return convert_skeleton(foreign, _DIALECT, settings)
