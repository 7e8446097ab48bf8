//! Simulated rankings against measured ones.
//!
//! [`data`] reads measurements, [`kernel`] makes a launch of each configuration with costs from
//! one-program measurements, [`score`] compares two orders, [`validate`] does all of it.

pub mod data;
pub mod kernel;
pub mod score;
pub mod validate;
