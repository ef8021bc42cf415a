"""Weight files (safetensors with a model card) and published checkpoints."""
