pub mod arbiter;
pub mod lines;
