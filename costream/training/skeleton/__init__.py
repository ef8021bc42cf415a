"""Custom-class trainer for skeleton actions."""
