"""Mutation runs: small changes of the decision modules, each of which a test has to detect."""
