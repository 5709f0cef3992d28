"""The set-up of a repository: its files, and what is left for a person to do in Google Cloud and GitHub."""
