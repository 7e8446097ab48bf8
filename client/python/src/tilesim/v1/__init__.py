"""The messages of `tilesim.v1`, generated from `proto/tilesim/v1` when the wheel is built."""
