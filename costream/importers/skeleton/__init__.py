"""Importers of skeleton networks."""
