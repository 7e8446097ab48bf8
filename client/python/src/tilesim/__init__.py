"""Client of tilesim, the cycle-level simulator for tile kernels."""
