"""Traces that several tests use."""

from __future__ import annotations

import tilesim
from tilesim import minimum


def copy(block: int, cycles: int = 16, name: str = "copy") -> tilesim.Trace:
    """Copies N floats in blocks of `block`; the last one is masked."""
    b = tilesim.TraceBuilder(name, axes=1)
    n = b.param("N")
    x, y = b.tensor("x", 32, "in", [n]), b.tensor("y", 32, "out", [n])
    row = b.buffer("row", 4 * block)
    work = b.tile("work", "vector", cycles)
    (p,) = b.pids
    dims = [(block, 1, minimum(block, n - p * block))]
    b.load(x, p * block, dims, semaphore=0, writes=[row])
    b.wait(0, block)
    b.compute(work, reads=[row], writes=[row])
    b.store(y, p * block, dims, reads=[row])
    return b.build()


def copy_launch(block: int, n: int = 4096, cycles: int = 16) -> tilesim.Launch:
    """The launch of `copy` over all of N."""
    return tilesim.Launch(copy(block, cycles), grid=[-(-n // block)], params={"N": n})


def endless() -> tilesim.Launch:
    """A launch that takes far longer than any test waits: no two work-items in a row are alike."""
    b = tilesim.TraceBuilder("endless", axes=1)
    x = b.tensor("x", 8, "in", [1 << 24])
    work = b.tile("work", "vector", 3)
    (p,) = b.pids
    mixed = b.let("mixed", (p * p ^ p >> 5) * 40503 & 0xFFFF)
    with b.loop(mixed & 15):
        b.compute(work)
    b.load(x, mixed * 64)
    return tilesim.Launch(b.build(), grid=[1 << 28])
