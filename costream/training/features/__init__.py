"""Training on features that were computed before: the networks of online action detection."""
