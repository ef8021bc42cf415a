"""Skeleton action models: graph convolutions and spatial attention."""
