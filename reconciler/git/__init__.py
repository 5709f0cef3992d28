"""Reader of a git repository, for operations.

It reads commits, their files, the history and the index without running programs that the repository's
settings name. Begin at `commit.head_of` for the checked-out commit, and at `revision.revision` for a commit's
files.
"""
