"""Shared parts of the tests: small networks, made-up data, servers, processes."""
