"""What the meetings with autotuners share: the caller says what a configuration is to the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .errors import Problem, TilesimError
from .launches import Candidate, Launch
from .results import Outcome

Found: TypeAlias = "Launch | Candidate | Problem"
"""What a configuration is to the simulator: a launch, a candidate of several, or what keeps it from being one."""


def candidate(key: str, find: Callable[[], Found]) -> Candidate:
    """The candidate that `find` finds. Whatever it raises concerns this candidate alone."""
    try:
        found = find()
    except TilesimError as error:
        found = error.problem
    except Exception as error:
        found = Problem(f"client.{type(error).__name__}", "trace_for", str(error) or type(error).__name__)
    if isinstance(found, Launch):
        return Candidate(found, key)
    if isinstance(found, Candidate):
        return Candidate(found.launches, found.key or key, found.failure)
    if isinstance(found, Problem):
        return Candidate(key=key, failure=found)
    message = f"trace_for returned {type(found).__name__}, no Launch, Candidate or Problem"
    return Candidate(key=key, failure=Problem("client.bad_trace", "trace_for", message))


def problem(outcome: Outcome) -> Problem:
    """Why a candidate has no score."""
    if outcome.problem is not None:
        return outcome.problem
    return Problem(f"client.{outcome.status.value.lower()}", "", "it has no score")
