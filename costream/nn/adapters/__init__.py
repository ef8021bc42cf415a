"""Adapters: small learnt differences to a trained network, and structured pruning with them."""
