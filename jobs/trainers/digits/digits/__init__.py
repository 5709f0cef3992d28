"""Recognizes hand-written digits."""
