"""Recognizes hand-written digits, with values that are tuned."""
