"""Foundations of every package: errors, HTTP, sanitizing, concurrency, the state directory."""
