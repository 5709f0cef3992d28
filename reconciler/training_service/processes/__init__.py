"""Programs, their process trees, and container engines, for the runner and the environments.

Begin at `programs.Programs`, which starts programs and follows their output to the end; `process_tree` finds
and ends what they leave behind.
"""
