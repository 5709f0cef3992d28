"""A deterministic simulator: the real code, many reconcilers at once, in a world that loses and delays.

One seed is one run, and decides everything in it: who goes on, how much time passes, and what goes wrong.
"""
