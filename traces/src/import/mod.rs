//! Importers: what other tools wrote, read as data and turned into traces.

pub mod pytorchsim;
pub mod togsim_log;
