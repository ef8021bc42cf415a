"""Token-gated models: Eventful ViTDet and ViViT."""
