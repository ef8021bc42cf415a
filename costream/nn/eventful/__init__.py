"""Eventful Transformer layers: gates, policies, gated attention."""
