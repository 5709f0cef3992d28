"""The set-up of a repository: its files, and the next steps in Google Cloud and GitHub."""
