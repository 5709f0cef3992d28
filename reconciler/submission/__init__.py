"""At most one job for each claim: the submission protocol, for operations, over the ports of `model`.

It is pure but for these ports, so that a simulator can run it in a world that loses answers. Begin at
`protocol`, whose first lines list the steps; `look` reads claims and jobs, and `adoption` finds the job of a
lost answer.
"""
