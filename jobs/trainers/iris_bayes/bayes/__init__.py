"""Trainer of the job iris-bayes."""
