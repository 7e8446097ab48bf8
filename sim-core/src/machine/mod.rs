//! Machine descriptions: the schema, its presets, and importers for other simulators' files.
//!
//! A description travels one way: text, tree ([`text`]), completed tree ([`schema`]: keys, types,
//! ranges, defaults), raw form ([`raw`]), and the validated [`Machine`] that the engine runs on
//! ([`spec`]). Each step refuses what it finds wrong with a [`MachineError`]. The way back
//! ([`Machine::to_value`]) gives the canonical form, which overrides act on and digests are over.
//!
//! ```
//! use tilesim_core::machine::Machine;
//!
//! let machine = Machine::from_yaml(
//!     "clocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60}",
//! )?;
//! let narrow = machine.with_overrides(&[("dram.channels", "8")])?;
//! assert_eq!(narrow.dram.channels, 8);
//! assert_ne!(narrow.digest()?, machine.digest()?);
//! let error = machine.with_overrides(&[("dram.chanels", "8")]).unwrap_err();
//! assert_eq!(error.hint, "did you mean 'dram.channels'?");
//! # Ok::<(), tilesim_core::machine::MachineError>(())
//! ```

mod device;
mod error;
pub mod import;
mod load;
mod peaks;
mod presets;
mod raw;
pub mod schema;
mod spec;
mod text;

pub use device::{BankedDevice, DEVICES};
pub use error::{MachineError, code};
pub use load::{Loaded, MachineDigest, Origin, load};
pub use peaks::Peaks;
pub use presets::{PRESETS, Preset};
pub use spec::*;
pub use text::{MAX_DEPTH, MAX_NODES, MAX_TEXT_BYTES};
