"""Reads mutated pickles under a cap on memory, and watches what happens meanwhile.

    python -m tests.support.fuzz_metadata --count 1000000

Anything but the library's own `DataError`, or any audit event of the interpreter (an import, an open file, compiled
code, a process ...) while a pickle is read, ends the run with the pickle that did it.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

from parquet_loader.errors import DataError
from parquet_loader.source.unischema.records import read_indexes, read_unischema
from tests.support.pickles import Mutator

CAP_BYTES = 256 * 2**20


def cap_memory(more_bytes: int) -> None:
    """Allow this process so much more address space than it has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def fuzz(count: int, seed: int) -> tuple[int, int]:
    """Read so many mutated pickles; return how many were read and how many refused.

    Raises:
        AssertionError: one did something else.
    """
    mutator = Mutator(seed)
    events: list[str] = []
    watching = False

    def hook(event: str, _: object) -> None:
        if watching:
            events.append(event)

    sys.addaudithook(hook)
    cap_memory(CAP_BYTES)
    read, refused = 0, 0
    for number in range(count):
        data = mutator.draw()
        for reader in (read_unischema, read_indexes):
            problem: BaseException | None = None
            watching = True
            try:
                reader(data)
                read += 1
            except DataError:
                refused += 1
            except BaseException as error:
                problem = error
            watching = False
            assert problem is None, f"pickle {number} of seed {seed}: {problem!r}: {data!r}"
            assert not events, f"pickle {number} of seed {seed}: {events}: {data!r}"
    return read, refused


def main() -> None:
    """Read the arguments, fuzz, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    read, refused = fuzz(arguments.count, arguments.seed)
    taken_s = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{arguments.count} mutated pickles, each as a Unischema and as indexes: {read} read, {refused} refused, "
        f"no other error, no audit event; {taken_s:.0f} s, peak {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()
