"""Hyper-parameter tuning: what is searched, what is tried next, what is stopped, and what came of it."""
