"""Nyström attention: window, continual and retroactive forms."""
