"""Alerts of a watch: rules that fire, and what is done then."""
