"""Conversion of other descriptions of jobs to manifests."""
