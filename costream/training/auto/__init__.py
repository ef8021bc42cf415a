"""``costream train auto``: which frontend and which head suit the examples."""
