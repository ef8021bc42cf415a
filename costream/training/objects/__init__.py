"""Custom-class trainer for objects."""
