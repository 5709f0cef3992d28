"""Trains."""
