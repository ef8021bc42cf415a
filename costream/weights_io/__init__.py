"""Weights: files, cards, where they are found, downloads, and reading those of other tools."""
