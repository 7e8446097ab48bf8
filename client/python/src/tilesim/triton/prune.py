"""Pruning of autotune configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from .._tuning import Found, candidate, problem
from ..errors import AllConfigsFailed, InvalidInput
from ..launches import Candidate, MachineLike
from ..results import Ranking

if TYPE_CHECKING:
    from ..client import Client

Heuristics: TypeAlias = Mapping[str, Callable[[dict[str, Any]], Any]]
AllFailed: TypeAlias = Literal["raise", "keep"]
_Config = TypeVar("_Config", bound="Config")


class Config(Protocol):
    """What is asked of a `triton.Config`."""

    def all_kwargs(self) -> dict[str, Any]:
        """Meta-parameters and compiler options by name."""
        ...


class TraceFor(Protocol):
    """What a configuration is to the simulator."""

    def __call__(self, config: Any, named_args: dict[str, Any], **kwargs: Any) -> Found:
        """`named_args` are the kernel's positional arguments by name; `kwargs` are those given by name, `grid` as the
        tuple it is for this configuration, and the values of heuristics."""
        ...


class Prune:
    """A function for `prune_configs_by={"early_config_prune": ...}` of `triton.autotune`.

    It ranks all configurations in one call and returns the best `keep`, best first: the autotuner measures those, or
    runs the only one. What cannot be simulated is left out. Nothing that belongs to the caller is changed: what
    `trace_for` and the grid get are copies of the argument dictionaries.

    `heuristics`: the values of `triton.heuristics` below the autotuner, which Triton itself evaluates only later; those
    above it arrive by themselves. `all_failed`: what to do when no configuration can be simulated: "raise"
    `AllConfigsFailed`, or "keep" them all. `on_ranking` is told each ranking.
    """

    def __init__(
        self,
        client: Client,
        trace_for: TraceFor,
        keep: int,
        machine: MachineLike | None = None,
        heuristics: Heuristics | None = None,
        all_failed: AllFailed = "raise",
        on_ranking: Callable[[Ranking], object] | None = None,
        timeout: float | None = None,
    ) -> None:
        if keep < 1:
            raise InvalidInput(f"cannot keep {keep} configurations", path="keep", hint="keep at least one")
        if all_failed not in ("raise", "keep"):
            raise InvalidInput(f"`{all_failed}` is no choice", path="all_failed", hint='use "raise" or "keep"')
        self._client = client
        self._trace_for = trace_for
        self._keep = keep
        self._machine = machine
        self._heuristics = dict(heuristics or {})
        self._all_failed = all_failed
        self._on_ranking = on_ranking
        self._timeout = timeout

    def __call__(self, configs: Sequence[_Config], named_args: Mapping[str, Any], **kwargs: Any) -> list[_Config]:
        """The best configurations, best first."""
        if not configs:
            return []
        candidates = [self._candidate(config, named_args, kwargs) for config in configs]
        ranking = self._client.rank(
            candidates, machine=self._machine, top_k=self._keep, progress=False, timeout=self._timeout
        )
        if self._on_ranking is not None:
            self._on_ranking(ranking)
        kept = [configs[place.index] for place in ranking.ranked[: self._keep]]
        if not kept:
            if self._all_failed == "raise":
                raise AllConfigsFailed({f"{o.index}: {o.key}": problem(o) for o in ranking.outcomes})
            return list(configs)
        return kept

    def _candidate(self, config: Config, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Candidate:
        def find() -> Found:
            return self._trace_for(config, dict(named_args), **self._arguments(config, named_args, kwargs))

        return candidate(str(config), find)

    def _arguments(self, config: Config, named_args: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments given by name, with the heuristics' values and the grid of this configuration."""
        arguments = dict(kwargs)
        # Triton evaluates heuristics in order, each with the values of those before.
        for name, value in self._heuristics.items():
            arguments[name] = value({**named_args, **arguments, **config.all_kwargs()})
        grid = arguments.get("grid")
        if callable(grid):
            grid = grid({**named_args, **arguments, **config.all_kwargs()})
        if grid is not None:
            arguments["grid"] = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        return arguments
