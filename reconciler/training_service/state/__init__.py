"""The service's state: the database, its records, and the folders of runs."""
