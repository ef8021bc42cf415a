"""Weights: files, cards, folders, downloads, and checkpoints of other tools."""
