"""State of the service, for all its packages: the database, its records, and the folders and logs of runs.

Begin at `database.Store`, which keeps jobs, trials, runs and settings; `run_folder` has the files by which a
run and its service communicate.
"""
