"""Code that jobs stage: its files, and the reproducible archives made of them, for operations.

Begin at `source_tree.read_source_tree`, which reads the files and their hash, a part of a job's name; `sdist`
builds what pip installs, without running the package's code.
"""
