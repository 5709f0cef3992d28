"""The services' REST methods."""
