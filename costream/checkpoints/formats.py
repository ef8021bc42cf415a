"""Table of the foreign checkpoint formats that can be imported. Does not import torch."""

from __future__ import annotations

# name -> (module with KEYS, detect and convert; description), in the order of detection
FORMATS: dict[str, tuple[str, str]] = {
    "oadtr": ("costream.checkpoints.oadtr", "official OadTR"),
    "miniroad": ("costream.checkpoints.miniroad", "MiniROAD"),
    "cooadtr": ("costream.checkpoints.cooadtr", "CoOadTR or CoTrans, one or two blocks"),
    "deepcot": ("costream.checkpoints.deepcot", "DeepCoT"),
    "continual-0.17": (
        "costream.checkpoints.continual_017",
        "encoder of one or two blocks, continual-inference 0.17",
    ),
    "continual": (
        "costream.checkpoints.continual_1",
        "encoder or encoder layer, continual-inference 1.x",
    ),
    "continual-skeletons": (
        "costream.checkpoints.continual_skeletons",
        "ST-GCN, AGCN or S-TR of continual-skeletons, regular or continual",
    ),
    "st-gcn": ("costream.checkpoints.stgcn", "original ST-GCN"),
    "2s-agcn": ("costream.checkpoints.agcn_2s", "a stream of 2s-AGCN"),
    "pyskl": ("costream.checkpoints.pyskl", "ST-GCN or ST-GCN++ of pyskl"),
    "vitdet": (
        "costream.checkpoints.vitdet",
        "ViTDet of detectron2 or of the Eventful Transformers",
    ),
    "slowfast": (
        "costream.checkpoints.slowfast",
        "X3D, Slow or I3D of SlowFast, its PyTorch or Caffe2 files",
    ),
    "pytorchvideo": ("costream.checkpoints.pytorchvideo", "X3D, Slow or I3D of PyTorchVideo"),
    "vivit": (
        "costream.checkpoints.vivit",
        "ViViT, factorised encoder, of TAdaConv or of the Eventful Transformers",
    ),
    "torch": ("costream.checkpoints.torch_encoder", "torch.nn.TransformerEncoder"),
}
