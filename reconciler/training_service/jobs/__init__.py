"""Translation of a job into the programs, arguments and variables of its run, for scheduler and runner.

It starts no program. Begin at `launch.launch`; the tables of images and machine types are in `images` and
`machines`.
"""
