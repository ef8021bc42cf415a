"""Compute budgets: parsing and the controllers that keep them."""
