"""`python -m tests.bench.news ROOT`: as if the service had told something else for the last plan."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from msgspec import msgpack
from msgspec.structs import replace

from reconciler.cachefile import CacheFile
from reconciler.plancache import NAME, KeptPlan


def main(root: Path) -> None:
    """Change what is remembered, where a plan is; prints whether there was one."""
    file = CacheFile(root, NAME, os.environ)
    body = file.load()
    if body is not None:
        kept = replace(msgpack.decode(body, type=KeptPlan), listed=bytes(32))
        file.save(msgpack.encode(kept))
    print(json.dumps(body is not None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
