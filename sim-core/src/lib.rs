//! sim-core
