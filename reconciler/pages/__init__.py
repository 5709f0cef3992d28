"""Pages of HTML about an environment's jobs, made of values alone."""
