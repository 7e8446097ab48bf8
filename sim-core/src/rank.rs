//! Ranking core.
