//! Times of the parts.
fn main() {}
