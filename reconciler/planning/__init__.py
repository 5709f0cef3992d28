"""Plans as pure functions of values: the change of each desired job, drift, limits and outcomes.

For operations, which read the values and carry out the plan. Begin at `planner.make_plan`; `decide` is the
only decision table.
"""
