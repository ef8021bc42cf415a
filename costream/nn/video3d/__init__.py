"""Continual 3D convolutional networks."""
