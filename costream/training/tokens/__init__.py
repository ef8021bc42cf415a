"""Custom-class trainer on precomputed tokens."""
