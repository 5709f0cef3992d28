"""`python -m simulation`: run many seeds, or run a single seed again with its trace."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count

from .faults import BEYOND, KINDS
from .guards import GUARDS, left_out
from .run import Result, Simulation
from .trace import text_of

_CHUNK = 50
_SHOWN = 120


def main() -> int:
    """Run the seeds; return 1 after a violation."""
    arguments = _arguments()
    begun = time.monotonic()
    one = arguments.seed is not None
    seeds = (
        range(arguments.seed, arguments.seed + 1)
        if one
        else range(arguments.first, arguments.first + arguments.seeds)
    )
    faults, seen, steps, failed = Counter[str](), Counter[str](), 0, 0
    work = partial(_chunk, beyond=arguments.broken_bounds, without=arguments.without, most=arguments.most)
    for done, part in enumerate(_parts(work, seeds), start=1):
        for result in part:
            faults += result.faults
            seen += result.seen
            steps += result.steps
            if result.violations or one:
                failed += bool(result.violations)
                _tell(result, arguments, whole=one)
        if failed >= arguments.most:
            break
        if done % 20 == 0:
            print(f"… {done * _CHUNK} seeds, {time.monotonic() - begun:.0f} s", flush=True)
    _tell_counts(faults, seen, beyond=arguments.broken_bounds)
    said = f"{failed} of them with a finding" if failed else "without a finding"
    print(f"{len(seeds)} seeds, {steps} steps, {time.monotonic() - begun:.1f} s: {said}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--broken-bounds", action="store_true", help="the services break their bounds")
    parser.add_argument("--without", choices=GUARDS, default="", help="a guard that is left out")
    parser.add_argument("--most", type=int, default=3, help="findings after which it stops")
    return parser.parse_args()


def _parts(work: partial[list[Result]], seeds: range) -> Iterator[Iterable[Result]]:
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    workers = min(2, cpu_count() or 1, len(chunks))
    if workers < 2:
        yield from map(work, chunks)
        return
    with ProcessPoolExecutor(workers) as pool:
        try:
            yield from pool.map(work, chunks)
        finally:
            pool.shutdown(cancel_futures=True)


def _chunk(seeds: range, *, beyond: bool, without: str, most: int) -> list[Result]:
    results: list[Result] = []
    failed = 0
    with left_out(without):
        for seed in seeds:
            results.append(_kept(Simulation(seed, beyond=beyond, without=without).run(), len(seeds)))
            failed += bool(results[-1].violations)
            if failed == most:
                break
    return results


def _kept(result: Result, of: int) -> Result:
    """Drop the trace of a run without a violation, to avoid carrying it between processes."""
    if not result.violations and of > 1:
        result.log.clear()
    return result


def _tell(result: Result, arguments: argparse.Namespace, *, whole: bool) -> None:
    print(text_of(result.log if whole else result.log[-_SHOWN:]))
    for violation in result.violations:
        print(f"seed {result.seed}: {violation}")
    options = " --broken-bounds" if arguments.broken_bounds else ""
    options += f" --without {arguments.without}" if arguments.without else ""
    if result.violations:
        given = f' OPTIONS="{options.strip()}"' if options else ""
        print(f"again: make simulate SEED={result.seed}{given}\n", flush=True)


def _tell_counts(faults: Counter[str], seen: Counter[str], *, beyond: bool) -> None:
    for title, names, counts in (
        ("injected", [*KINDS, *(BEYOND if beyond else ())], faults),
        ("seen", sorted(seen), seen),
    ):
        print(f"{title}:")
        for name in names:
            print(f"  {counts[name]:9,}  {name}")


if __name__ == "__main__":
    sys.exit(main())
