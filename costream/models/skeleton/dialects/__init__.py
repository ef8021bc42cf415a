"""Checkpoints of skeleton networks, a file for each code base."""
