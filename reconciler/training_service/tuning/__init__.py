"""Tuning of hyper-parameters, for the APIs and the scheduler: search space, trials, early stopping, results.

Begin at `study.study_of`, which gives both APIs' specifications one form, then `search.suggest`, which
chooses a trial's parameters.
"""
