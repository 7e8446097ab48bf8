//! Reads BookSim 2 network configurations.
pub struct BookSimFile;
pub enum BookSimError {}
