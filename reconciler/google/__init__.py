"""Adapters to Google's APIs and to the training service."""
