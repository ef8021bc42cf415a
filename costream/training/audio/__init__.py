"""Custom-class trainer for sounds."""
