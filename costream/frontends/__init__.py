"""Frontends: pictures or sound in, tokens for a continual network out."""
