"""Planning: compare the desired jobs with the actual ones; the limits and outcomes of a plan. Pure."""
