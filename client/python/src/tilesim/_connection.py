"""What sync and async clients share: where the server is, deadlines, and the answers of streams."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _daemon
from ._operations import Operations, rank_part
from .errors import DeadlineExceeded, ForkedClient, Internal, InvalidInput, TilesimError, Unavailable
from .launches import MachineLike
from .results import Outcome, Ranking
from .v1 import machines_pb2_grpc, server_pb2_grpc, simulation_pb2_grpc, traces_pb2_grpc

_MESSAGE_BYTES = 256 << 20
"""Bytes of a message that a server may send."""
CONNECT_SECONDS = 2.0
"""How long a server may take to answer for the first time."""

_STUBS: Mapping[str, Callable[[Any], Any]] = {
    "Machines": machines_pb2_grpc.MachinesStub,
    "Server": server_pb2_grpc.ServerStub,
    "Simulation": simulation_pb2_grpc.SimulationStub,
    "Traces": traces_pb2_grpc.TracesStub,
}


class Settings:
    """The settings of a client, sync or async, and its operations."""

    def __init__(
        self, address: str | None, machine: MachineLike | None, tenant: str | None, timeout: float | None
    ) -> None:
        self._named = address if address is not None else os.environ.get("TILESIM_SERVER") or None
        tenant = tenant if tenant is not None else os.environ.get("TILESIM_TENANT") or None
        self.metadata: Sequence[tuple[str, str]] = [] if tenant is None else [("x-tilesim-tenant", tenant)]
        self.timeout = timeout
        self.operations = Operations(machine)
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Refuses a client that a fork has copied: its connection and threads stayed with the parent."""
        if os.getpid() != self._pid:
            raise ForkedClient

    def target(self) -> tuple[str, list[tuple[str, int]]]:
        """Where the server is, as gRPC names it, and the options of a channel to it. May start a daemon."""
        options = [("grpc.max_receive_message_length", _MESSAGE_BYTES), ("grpc.max_send_message_length", -1)]
        if self._named is None:
            # A proxy of the environment does not reach this host's own ports.
            return _daemon.address(), [*options, ("grpc.enable_http_proxy", 0)]
        scheme, separator, rest = self._named.partition("://")
        if separator and scheme != "http":
            raise InvalidInput(
                f"`{self._named}` is not an address",
                code="client.bad_address",
                path="address",
                hint="use host:port; for TLS, put a proxy between",
            )
        return (rest if separator else self._named), options

    def not_connected(self, error: TilesimError) -> TilesimError:
        """What it means that the first call failed."""
        if not isinstance(error, DeadlineExceeded):
            return error
        return Unavailable(
            f"no server answers at {self._named or 'the address of the local daemon'} within {CONNECT_SECONDS:.0f} s",
            code="client.unreachable",
            path="address",
            hint="start one with `tilesim serve`, or name no address to have one started",
        )

    def deadline(self, timeout: float | None) -> Deadline:
        """The deadline of a call that may take `timeout` seconds, else as long as the client's calls may."""
        return Deadline(timeout if timeout is not None else self.timeout)


class Deadline:
    """When a caller stops waiting."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds left; None: there is no end."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                "the deadline passed before the result was there",
                hint="allow more time, or set a cycle budget to bound the run by its own measure",
            )
        return left

    def at_most(self, seconds: float) -> float:
        """So many seconds, but no more than are left."""
        left = self.left()
        return seconds if left is None else min(seconds, left)


def stubs(channel: Any) -> dict[str, Any]:
    """The services of a channel, sync or async."""
    return {name: stub(channel) for name, stub in _STUBS.items()}


class RankState:
    """What has been told of a ranking."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []
        self._ranking: Ranking | None = None

    def take(self, response: Any) -> Outcome | None:
        """The outcome that a response tells, if it tells one."""
        part = rank_part(response)
        if isinstance(part, Outcome):
            self._outcomes.append(part)
            return part
        if part is not None:
            self._ranking = Ranking._of(part, self._outcomes)
        return None

    def ranking(self) -> Ranking:
        """The finished ranking."""
        if self._ranking is None:
            raise Internal("the ranking ended without an order", code="client.malformed_answer")
        return self._ranking
