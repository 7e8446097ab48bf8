//! Ranks every shape and scores it.
