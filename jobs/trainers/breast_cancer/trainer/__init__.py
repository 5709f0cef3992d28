"""Trains a classifier of breast tumours."""
