"""Importers of foreign checkpoints, one file a project."""
