//! Simulated rankings against measured ones.
//!
//! [`data`] reads measurements, [`kernel`] makes a launch of each configuration with costs from
//! one-program measurements, [`score`] compares two orders.

pub mod data;
pub mod kernel;
pub mod score;
