"""Deterministic simulator: the real code, many reconcilers at once, in a world with loss and delay.

A seed decides a whole run: the order of processes, the time that passes, and the faults.
"""
