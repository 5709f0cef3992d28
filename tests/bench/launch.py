"""`python launch.py OUTPUT COMMAND …`: run a command, and print its costs as JSON.

It is a small process of its own: Linux counts the parent's memory at the fork in a child's peak.

    wall    seconds from its start to its end
    cpu     seconds, including all awaited child processes
    peak    bytes of memory of the largest of these processes
    code    its exit code
"""

from __future__ import annotations

import json
import os
import sys
import time


def main(output: str, command: list[str]) -> None:
    """Run the command, with its output in a file."""
    to_file = [
        (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    began = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=to_file)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    cost = {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss * unit}
    print(json.dumps(cost | {"code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
