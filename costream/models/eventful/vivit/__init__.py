"""Eventful ViViT: network and importer."""
