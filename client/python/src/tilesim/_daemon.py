"""A local daemon: one per process, started when the first client needs it, stopped when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import DaemonError

_START_SECONDS = 30.0
"""How long a daemon may take until it listens."""
_STOP_SECONDS = 5.0
"""How long it may take to stop."""
_LOG_BYTES = 2000
"""Bytes of its log that a message tells of."""


def address() -> str:
    """The address of this process's daemon, which is started if it does not run."""
    global _daemon
    with _lock:
        if _daemon is None or _daemon.ended():
            if _daemon is not None:
                _daemon.stop()
            _daemon = _Daemon(find())
            # Children of multiprocessing end without what atexit knows.
            multiprocessing.util.Finalize(None, stop, exitpriority=0)
        return _daemon.address


def stop() -> None:
    """Stops this process's daemon, if it has one. The next client without an address starts another."""
    global _daemon
    with _lock:
        if _daemon is not None:
            _daemon.stop()
            _daemon = None


def find() -> list[str]:
    """The command of the daemon: `TILESIM_DAEMON`, else `tilesimd` or `tilesim` on the path, else a build of the
    checkout that this package or the current folder lies in."""
    named = os.environ.get("TILESIM_DAEMON")
    if named:
        program = shutil.which(named)
        if program is None:
            raise DaemonError(
                f"TILESIM_DAEMON names `{named}`, which is no program", hint="let it name tilesimd or tilesim"
            )
        return _command(program)
    for name in ("tilesimd", "tilesim"):
        program = shutil.which(name)
        if program is not None:
            return _command(program)
    for program in _built():
        return _command(program)
    raise DaemonError(
        "no daemon to start: no tilesimd and no tilesim found",
        hint="build one (cargo build --release), put it on the path or name it in TILESIM_DAEMON, or give the address "
        "of a server",
    )


def _command(program: str) -> list[str]:
    return [program] if Path(program).name.startswith("tilesimd") else [program, "serve"]


def _built() -> Iterator[str]:
    """Programs that cargo has built here."""
    for start in (Path(__file__).resolve(), Path.cwd() / "_"):
        for folder in start.parents:
            if (folder / "proto/tilesim/v1/simulation.proto").is_file() and (folder / "Cargo.toml").is_file():
                target = Path(os.environ.get("CARGO_TARGET_DIR") or folder / "target")
                for profile in ("release", "debug"):
                    for name in ("tilesimd", "tilesim"):
                        program = shutil.which(target / profile / name)
                        if program is not None:
                            yield str(program)


class _Daemon:
    """A daemon process with a store of its own."""

    def __init__(self, command: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tilesim-")
        folder = Path(self._folder.name)
        port_file, self._log = folder / "port", folder / "log"
        arguments = [
            *("--listen", "127.0.0.1:0", "--port-file", str(port_file), "--store", str(folder / "store")),
            # It stops with this process, whatever ends that, and without waiting for what runs.
            *("--stop-with-stdin", "--drain-seconds", "0", "--log", "warn"),
        ]
        try:
            with self._log.open("wb") as log:
                # A session of its own: an interrupt from the keyboard is for this process to handle.
                self._process = subprocess.Popen(
                    command + arguments, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            self._folder.cleanup()
            raise DaemonError(f"cannot start {command[0]}: {error.strerror}") from error
        try:
            self.address = f"127.0.0.1:{self._port(port_file)}"
        except BaseException:
            self.stop()
            raise

    def _port(self, port_file: Path) -> int:
        end = time.monotonic() + _START_SECONDS
        # The file appears whole, once the daemon listens.
        while not port_file.exists():
            if self.ended():
                raise DaemonError(f"the daemon ended with status {self._process.returncode}", hint=self._last_words())
            if time.monotonic() > end:
                raise DaemonError(f"the daemon does not listen after {_START_SECONDS:.0f} s", hint=self._last_words())
            time.sleep(0.005)
        return int(port_file.read_text())

    def _last_words(self) -> str:
        log = self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()
        return f"it said: {log}" if log else "it said nothing"

    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ends the process and removes its folder."""
        self.let_go()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def let_go(self) -> None:
        """Closes this process's end of the daemon's input."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def disown(self) -> None:
        """What a forked child does: the daemon is its parent's, and must not outlive it because of the child."""
        self.let_go()
        # The folder is the parent's to remove.
        self._folder._finalizer.detach()  # type: ignore[attr-defined]


_lock = threading.Lock()
_daemon: _Daemon | None = None


def _after_fork() -> None:
    global _daemon, _lock
    # Whoever held the lock in the parent does not exist here.
    _lock = threading.Lock()
    if _daemon is not None:
        _daemon.disown()
        # No child of this process: nothing here may wait for it or end it.
        _daemon._process.returncode = 0
        _daemon = None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
