"""Alerts of a watch: rules, and the actions that run when they fire."""
