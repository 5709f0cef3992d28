"""Admission, progress and recovery of jobs."""
