"""Custom-class trainer for video actions."""
