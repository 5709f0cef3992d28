"""Mutation runs: small changes of the modules that decide, each of which some test has to notice."""
