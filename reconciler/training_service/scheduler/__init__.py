"""Admission, progress and recovery of jobs, for the service's process.

Begin at `supervisor.Supervisor`, whose `tick` takes every job a step further; `recovery` takes over what runs
recorded while no service ran.
"""
