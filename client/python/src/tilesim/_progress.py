"""A progress bar on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

_WIDTH = 30


class Bar:
    """Counts what is done: with tqdm where that is installed, else with a line of its own.

    `show`: None shows it if standard error is a terminal.
    """

    def __init__(self, total: int, what: str, show: bool | None) -> None:
        self._total, self._done, self._what = total, 0, what
        self._show = sys.stderr.isatty() if show is None else show
        self._tqdm: Any = None
        if self._show:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                self._draw()
            else:
                self._tqdm = tqdm(total=total, desc=what)

    def advance(self) -> None:
        """One more is done."""
        self._done += 1
        if self._tqdm is not None:
            self._tqdm.update(1)
        elif self._show:
            self._draw()

    def _draw(self) -> None:
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        print(f"\r{self._what} [{bar}] {self._done}/{self._total}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tqdm is not None:
            self._tqdm.close()
        elif self._show:
            print(file=sys.stderr)
