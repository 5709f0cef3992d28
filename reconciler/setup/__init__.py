"""Set-up of a repository, for `reconciler init`: its files, the claims bucket, and the next steps.

Begin at `questions.read_setup`, which collects the parameters; `files` writes the files, and `next_steps` has
the commands for what remains in Google Cloud and GitHub.
"""
