"""Says what there is."""
