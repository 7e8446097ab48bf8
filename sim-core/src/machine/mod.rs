//! Machine descriptions: the schema, its presets, and importers for other simulators' files.

mod spec;

pub use spec::*;
