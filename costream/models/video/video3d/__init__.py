"""Continual 3D networks: CoX3D, CoSlow, CoI3D, and their checkpoints."""
