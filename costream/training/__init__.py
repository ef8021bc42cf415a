"""Training of custom classes: ``costream train``."""
