"""The database and the records in it."""
