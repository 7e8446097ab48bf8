"""What one load or store touches: a box of strided runs where it is one, a count of lines where not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LINE_BYTES", "MAX_RUNS", "Region", "Run", "region"]

#: The line that gathers are counted in, bytes.
LINE_BYTES = 64

#: Runs along one dimension of a box; more make it a gather.
MAX_RUNS = 4


@dataclass(frozen=True)
class Run:
    """Neighbours along one dimension, `stride` elements apart (`None` for a single one)."""

    length: int
    #: Elements from the first active element of the box.
    start: int
    stride: int | None


@dataclass(frozen=True)
class Region:
    """The active lanes of one access."""

    #: Extents of the block, masks aside.
    shape: tuple[int, ...]
    #: Active lanes.
    valid: int
    #: Offset of the first active element, in elements; `None` when no lane is active.
    base: int | None
    #: Runs along each dimension (none active: empty); `None`: not a box.
    runs: tuple[tuple[Run, ...], ...] | None
    #: Distinct memory lines, each of `LINE_BYTES`.
    lines: int

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Elements between neighbours, if each dimension is one run."""
        if self.runs is None or any(len(r) > 1 for r in self.runs):
            return None
        return tuple((r[0].stride or 0) if r else 0 for r in self.runs)


def region(offsets: Any, mask: Any, bits: int) -> Region:
    """Describes the lanes of `offsets` (in elements of `bits`) where `mask` holds."""
    shape = tuple(int(n) for n in offsets.shape)
    active = offsets[mask]
    if active.size == 0:
        return Region(shape, 0, None, tuple(() for _ in shape), 0)
    width = max(1, bits // 8)
    first = active * width // LINE_BYTES
    last = (active * width + width - 1) // LINE_BYTES
    touched = np.union1d(first, last) if bool((first != last).any()) else np.unique(first)
    box = _box(mask)
    runs = None if box is None else _runs(offsets[box])
    base = int(offsets[box].flat[0]) if box is not None and runs is not None else int(active.min())
    return Region(shape, int(active.size), base, runs, int(touched.size))


def _box(mask: Any) -> tuple[slice, ...] | None:
    """The interval of each dimension, if the active lanes are their product."""
    slices = []
    for axis in range(mask.ndim):
        others = tuple(i for i in range(mask.ndim) if i != axis)
        along = np.flatnonzero(mask.any(axis=others))
        slices.append(slice(int(along[0]), int(along[-1]) + 1))
    return tuple(slices) if bool(mask[tuple(slices)].all()) else None


def _runs(block: Any) -> tuple[tuple[Run, ...], ...] | None:
    """The runs of a dense block, if its offsets are a sum of one vector per dimension."""
    base = block.flat[0]
    total = np.full((1,) * block.ndim, base, dtype=np.int64)
    vectors = []
    for axis in range(block.ndim):
        index: list[Any] = [0] * block.ndim
        index[axis] = slice(None)
        vector = block[tuple(index)] - base
        vectors.append(vector)
        total = total + vector.reshape([-1 if i == axis else 1 for i in range(block.ndim)])
    if not bool((total == block).all()):
        return None
    runs = tuple(_split(v) for v in vectors)
    return None if any(len(r) > MAX_RUNS for r in runs) else runs


def _split(vector: Any) -> tuple[Run, ...]:
    """Cuts a vector wherever its usual stride is broken."""
    if vector.size == 1:
        return (Run(1, int(vector[0]), None),)
    steps = np.diff(vector)
    values, counts = np.unique(steps, return_counts=True)
    stride = int(values[counts.argmax()])
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(steps != stride)), int(vector.size)]
    return tuple(Run(b - a, int(vector[a]), stride if b - a > 1 else None) for a, b in itertools.pairwise(cuts))
