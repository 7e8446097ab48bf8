//! Simulated rankings against measured ones.
//!
//! [`data`] reads measurements, [`kernel`] makes a launch of each configuration with costs from
//! one-program measurements, [`validate`] simulates them, [`score`] compares two orders, [`naive`] is the
//! model to beat, and [`constants`] lists every figure in use.

pub mod constants;
pub mod data;
pub mod kernel;
pub mod naive;
pub mod score;
pub mod validate;
