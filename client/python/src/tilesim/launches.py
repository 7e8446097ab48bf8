"""What to run and on what: traces, machines, launches, candidates."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from .errors import InvalidInput, Problem
from .results import TraceInfo

if TYPE_CHECKING:
    from .builder import TraceBuilder

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether a text has the form of a digest."""
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True)
class Trace:
    """A trace file: what one work-item of a kernel does."""

    content: bytes = field(repr=False)
    """The file, in any encoding: text, binary container, or the JSON work-item form."""
    name: str = "trace.tile"
    """File name; its extension helps to tell the encodings apart."""

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Trace:
        """Reads a trace file."""
        path = Path(path)
        return cls(path.read_bytes(), path.name)

    @classmethod
    def text(cls, text: str, name: str = "trace.tile") -> Trace:
        """A trace in the text form."""
        return cls(text.encode(), name)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of name and content. It is not the trace's digest, which the server alone computes."""
        ending = Path(self.name).suffix.encode()
        return hashlib.sha256(ending + b"\0" + self.content).hexdigest()


TraceLike: TypeAlias = Union[Trace, "TraceBuilder", TraceInfo, str, os.PathLike[str]]
"""A trace, a builder of one, a stored one (as described by the server, or by its digest), or a file."""


def as_trace(trace: TraceLike) -> Trace | str:
    """The trace, or the digest under which it is stored."""
    from .builder import TraceBuilder

    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, TraceBuilder):
        return trace.build()
    if isinstance(trace, TraceInfo):
        return trace.digest
    if isinstance(trace, os.PathLike):
        return Trace.file(trace)
    if is_digest(trace):
        return trace
    raise InvalidInput(
        f"`{trace[:80]}` is not the digest of a trace",
        code="client.bad_trace",
        hint="use Trace.text for a text and a pathlib.Path for a file",
    )


@dataclass(frozen=True)
class Machine:
    """A machine: a preset, a stored one or a description, with changes on top."""

    preset: str | None = None
    """Name of an embedded preset."""
    digest: str | None = None
    """Digest of a stored machine."""
    document: str | None = field(default=None, repr=False)
    """A description in tilesim's own YAML schema, or in a format that the server imports."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Changes as path and value in YAML notation, applied in order."""

    def __post_init__(self) -> None:
        if sum(source is not None for source in (self.preset, self.digest, self.document)) != 1:
            raise InvalidInput(
                "a machine has exactly one source",
                code="client.bad_machine",
                hint="set one of `preset`, `digest` and `document`",
            )

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Machine:
        """Reads a machine file."""
        return cls(document=Path(path).read_text(encoding="utf-8"))

    def override(self, changes: Mapping[str, object]) -> Machine:
        """The same machine with changes on top, for example `{"dram.channels": 8}`."""
        added = tuple((path, _yaml(value)) for path, value in changes.items())
        return replace(self, overrides=self.overrides + added)


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


MachineLike: TypeAlias = Machine | str | os.PathLike[str]
"""A machine, the name of a preset or the digest of a stored one, or a file."""


def as_machine(machine: MachineLike | None) -> Machine:
    """The machine."""
    if machine is None:
        raise InvalidInput(
            "no machine to run on",
            code="client.no_machine",
            path="machine",
            hint="name one here or when the client is made",
        )
    if isinstance(machine, Machine):
        return machine
    if isinstance(machine, os.PathLike):
        return Machine.file(machine)
    return Machine(digest=machine) if is_digest(machine) else Machine(preset=machine)


@dataclass(frozen=True)
class Launch:
    """A trace with grid, parameters and tensor placement."""

    trace: TraceLike
    grid: Sequence[int]
    """Work-items along each axis; one number per axis of the trace."""
    params: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Tensor extents by name, instead of the trace's."""
    placement: Mapping[str, int] = field(default_factory=dict)
    """Byte addresses of tensors by name; all or none."""
    allow_overlap: bool = False
    """Tensors may overlap."""
    cycle_budget: int | None = None
    """Stop once so many core cycles have been simulated."""
    max_work_items: int | None = None
    """Refuse a launch with more work-items; at most, and by default, the server's limit."""
    max_requests: int | None = None
    """Refuse a launch with more memory requests; at most, and by default, the server's limit."""
    allow_cost_mismatch: bool = False
    """Run even if the trace's costs were measured on a machine that differs from this one."""
    registers_per_item: int | None = None
    """Registers one work-item takes, of all its threads together; None: as the trace says."""
    threads_per_item: int | None = None
    """Threads one work-item takes; None: as the trace says."""


@dataclass(frozen=True)
class Candidate:
    """One candidate of a ranking: launches with weights, or what it failed with before it came here."""

    launches: Launch | Sequence[Launch | tuple[Launch, int]] = ()
    """One launch, or several, each alone or with its weight. The score is the weighted sum of their cycles."""
    key: str = ""
    """A name for it; need not be unique."""
    failure: Problem | None = None
    """Why it failed already; it is reported as FAILED with this problem."""

    @property
    def weighted(self) -> list[tuple[Launch, int]]:
        """Its launches with their weights."""
        launches = [self.launches] if isinstance(self.launches, Launch) else self.launches
        return [entry if isinstance(entry, tuple) else (entry, 1) for entry in launches]


@dataclass(frozen=True)
class Replay:
    """One launch of a replay."""

    launch: Launch
    key: str = ""
    """A name for it; returned with the result."""
    machine: MachineLike | None = None
    """What to run on; None: the replay's machine."""
