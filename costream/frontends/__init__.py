"""Frontends: convert images, skeletons or audio into tokens for a continual network."""
