"""Generates the protobuf and gRPC stubs when a wheel is built."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs the protobuf compiler over `tilesim/v1/*.proto`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        from grpc_tools import protoc

        root = Path(self.root)
        # A source distribution carries the files; a checkout has them at its top.
        folders = [root / "proto", root.parent.parent / "proto"]
        proto = next((f for f in folders if (f / "tilesim" / "v1").is_dir()), None)
        if proto is None:
            looked = " and ".join(str(f) for f in folders)
            raise RuntimeError(f"no tilesim/v1/*.proto in {looked}")
        out = root / "src"
        arguments = [
            "protoc",
            f"--proto_path={proto}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *sorted(str(p) for p in (proto / "tilesim" / "v1").glob("*.proto")),
        ]
        if protoc.main(arguments) != 0:
            raise RuntimeError("the protobuf compiler failed")
