"""Triton: pruning the configurations of an autotuner by simulated cycles."""
