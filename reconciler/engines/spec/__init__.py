"""Specs of jobs, by apiVersion: defaults, package, command, request body, hours, workers, trials. Pure."""
