"""What can go wrong, as exceptions.

Every exception carries the four parts of a problem: `code`, a stable identifier; `path`, where; `message`, what is
wrong; `hint`, what to do about it. The class says what a caller can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_DOMAIN = "tilesim"
_DETAILS = "grpc-status-details-bin"


@dataclass(frozen=True)
class Problem:
    """Something that is wrong."""

    code: str
    """Stable identifier, for example `launch.axis_count`."""
    path: str = ""
    """Where: a path into the request, trace or machine; empty when it concerns the whole."""
    message: str = ""
    """What is wrong, for people."""
    hint: str = ""
    """What to do about it, for people; may be empty."""

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message} [{self.code}]{hint}"


class TilesimError(Exception):
    """The base of all exceptions of this package."""

    default_code: ClassVar[str] = "client.error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        path: str = "",
        hint: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(code or self.default_code, path, message, hint)
        """The four parts together."""
        self.retry_after = retry_after
        """Seconds after which trying again may help."""

    def __str__(self) -> str:
        return str(self.problem)

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled from its positional arguments alone; the rest is its state.
        return type(self)._blank, (), self.__dict__ | {"args": self.args}

    @classmethod
    def _blank(cls) -> TilesimError:
        return cls.__new__(cls)

    @property
    def code(self) -> str:
        """Stable identifier, for example `launch.axis_count`."""
        return self.problem.code

    @property
    def path(self) -> str:
        """Where: a path into the request, trace or machine; empty when it concerns the whole."""
        return self.problem.path

    @property
    def message(self) -> str:
        """What is wrong, for people."""
        return self.problem.message

    @property
    def hint(self) -> str:
        """What to do about it, for people; may be empty."""
        return self.problem.hint


class InvalidInput(TilesimError):
    """The request is wrong in itself: trying again does not help."""

    default_code = "client.invalid"


class FailedPrecondition(TilesimError):
    """The request does not fit what it meets: a deadlock, a machine too small, costs of another machine."""

    default_code = "client.precondition"


class OverBudget(FailedPrecondition):
    """The run's own budget of simulated cycles ended it."""

    default_code = "run.over_budget"
    cycles: int = 0
    """Core cycles simulated when it did."""


class NotFound(TilesimError):
    """What the request names is not there."""

    default_code = "client.not_found"


class Exhausted(TilesimError):
    """A queue or a quota is full; `retry_after` says when trying again may help."""

    default_code = "client.exhausted"


class DeadlineExceeded(TilesimError):
    """The wall-clock deadline passed."""

    default_code = "run.deadline"


class Cancelled(TilesimError):
    """The request was cancelled."""

    default_code = "run.cancelled"


class Unavailable(TilesimError):
    """No server answers, or it is shutting down."""

    default_code = "client.unreachable"


class Unimplemented(TilesimError):
    """The verb is part of the contract but not of this server."""

    default_code = "client.unimplemented"


class DataLoss(TilesimError):
    """Stored data is damaged."""

    default_code = "client.data_loss"


class Internal(TilesimError):
    """A fault of the server, or an answer that cannot be read."""

    default_code = "client.internal"


class DaemonError(Unavailable):
    """The local daemon cannot be found or started."""

    default_code = "client.daemon"


class ForkedClient(TilesimError):
    """A client was used in a child process of the one that made it."""

    default_code = "client.forked"

    def __init__(self) -> None:
        super().__init__(
            "this client was made in the parent process, and its connection stayed there",
            hint="make clients after the fork, or start processes with `spawn` or `forkserver`",
        )


class AllConfigsFailed(TilesimError):
    """No configuration of an autotuner could be simulated."""

    default_code = "client.all_configs_failed"

    def __init__(self, failures: Mapping[str, Problem]) -> None:
        told = [f"{key}: {problem}" for key, problem in list(failures.items())[:_TOLD]]
        if len(failures) > len(told):
            told.append(f"and {len(failures) - len(told)} more")
        super().__init__(
            f"none of {len(failures)} configurations could be simulated: " + "; ".join(told),
            hint='correct what the failures name, or pass all_failed="keep" to leave the choice to the autotuner',
        )
        self.failures = dict(failures)
        """What was wrong with each configuration, by its text."""


_TOLD = 4
"""Failures that a message tells of, at most."""

_CLASSES: Mapping[grpc.StatusCode, type[TilesimError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.OUT_OF_RANGE: InvalidInput,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.DATA_LOSS: DataLoss,
}


def from_rpc(error: grpc.RpcError) -> TilesimError:
    """The exception for a failed call, sync or async: both have `code`, `details` and `trailing_metadata`."""
    call: Any = error
    info, retry_after = _details(call.trailing_metadata() or ())
    cls = _CLASSES.get(call.code(), Internal)
    cycles = info.metadata.get("cycles")
    if cls is FailedPrecondition and cycles is not None:
        cls = OverBudget
    result = cls(
        call.details() or call.code().name.lower(),
        code=info.reason or None,
        path=info.metadata.get("path", ""),
        hint=info.metadata.get("hint", ""),
        retry_after=retry_after,
    )
    if isinstance(result, OverBudget) and cycles is not None:
        result.cycles = int(cycles)
    return result


def _details(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[Any, float | None]:
    """What the server tells beside code and text: the `ErrorInfo`, and the seconds to wait."""
    info, retry_after = error_details_pb2.ErrorInfo(), None
    raw = next((value for key, value in metadata if key == _DETAILS), None)
    status = status_pb2.Status()
    try:
        if isinstance(raw, bytes):
            status.ParseFromString(raw)
    except DecodeError:
        # A proxy's own invention: code and text say what is known.
        return info, retry_after
    for detail in status.details:
        found = error_details_pb2.ErrorInfo()
        if detail.Unpack(found) and found.domain == _DOMAIN:
            info = found
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return info, retry_after
