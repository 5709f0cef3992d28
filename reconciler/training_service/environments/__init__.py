"""Python environments of trainers, for the runner: built by uv in layers, and shared by runs.

Begin at `prepare.prepare`, which fetches a run's packages, chooses its Python and makes its environment.
"""
