"""Foundations of every package: errors, HTTP, sanitizing, logging, the state directory."""
