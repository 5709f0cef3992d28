"""Hyper-parameter tuning: the search space, the choice of trials, early stopping, and results."""
