"""What all tests share. They run against a real daemon: cargo sees to it that it is built (TILESIM_BIN_DIR names the
folder of others instead)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilesim

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", autouse=True)
def daemon() -> str:
    """The daemon's program, which clients of the tests start. Nothing else of the environment reaches them."""
    folder = os.environ.get("TILESIM_BIN_DIR")
    for name in [n for n in os.environ if n.startswith("TILESIM_")]:
        del os.environ[name]
    if folder is None:
        build = ["cargo", "build", "--quiet", "--locked", "-p", "tilesim-server", "-p", "tilesim-client", "--bins"]
        subprocess.run(build, cwd=REPOSITORY, check=True)
        folder = str(Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "debug")
    os.environ["TILESIM_DAEMON"] = str(Path(folder) / "tilesimd")
    return os.environ["TILESIM_DAEMON"]


@pytest.fixture
def client() -> Iterator[tilesim.Client]:
    """A client of the process's own daemon."""
    with tilesim.Client(machine="tpuv3", timeout=120) as client:
        yield client


@pytest.fixture
def samples() -> Path:
    """The sample traces."""
    return REPOSITORY / "traces" / "samples"
