"""Datasets, loops and the recipes that made the shipped weights."""
