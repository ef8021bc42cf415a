"""Table of the foreign checkpoint formats that can be imported. Does not import torch."""

from __future__ import annotations

# name -> (module with KEYS, detect and convert; description), in the order of detection
FORMATS: dict[str, tuple[str, str]] = {
    "oadtr": ("costream.importers.oadtr", "official OadTR"),
    "miniroad": ("costream.importers.miniroad", "MiniROAD"),
    "cooadtr": ("costream.importers.cooadtr", "CoOadTR or CoTrans, one or two blocks"),
    "deepcot": ("costream.importers.deepcot", "DeepCoT"),
    "continual-0.17": (
        "costream.importers.continual_inference",
        "encoder of one or two blocks, continual-inference 0.17",
    ),
    "continual": (
        "costream.importers.continual_inference",
        "encoder or encoder layer, continual-inference 1.x",
    ),
    "continual-skeletons": (
        "costream.importers.skeleton.continual",
        "ST-GCN, AGCN or S-TR of continual-skeletons, regular or continual",
    ),
    "st-gcn": ("costream.importers.skeleton.stgcn", "original ST-GCN"),
    "2s-agcn": ("costream.importers.skeleton.agcn", "a stream of 2s-AGCN"),
    "pyskl": ("costream.importers.skeleton.pyskl", "ST-GCN or ST-GCN++ of pyskl"),
    "vitdet": (
        "costream.importers.vitdet",
        "ViTDet of detectron2 or of the Eventful Transformers",
    ),
    "slowfast": (
        "costream.importers.slowfast",
        "X3D, Slow or I3D of SlowFast, its PyTorch or Caffe2 files",
    ),
    "pytorchvideo": ("costream.importers.pytorchvideo", "X3D, Slow or I3D of PyTorchVideo"),
    "vivit": (
        "costream.importers.vivit",
        "ViViT, factorised encoder, of TAdaConv or of the Eventful Transformers",
    ),
    "torch": ("costream.importers.torch_encoder", "torch.nn.TransformerEncoder"),
}
