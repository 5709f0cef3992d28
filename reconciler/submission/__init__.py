"""At most one job for each claim: observing, settling, adopting, cancelling, over ports."""
