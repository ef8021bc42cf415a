"""Weight files (safetensors with a model card) and importers of foreign checkpoints."""
