//! Networks on chip that model link contention flit by flit.
//!
//! [`flit`] holds one model for every topology that is built from input-queued routers and
//! point-to-point links: a crossbar (one router), a butterfly (`fly`), a mesh, chiplets (two
//! crossbars joined by few or narrow links) and any graph a BookSim network file describes. The
//! `simple` network, which has no flits, lives with the memory system.

pub mod flit;

pub use flit::{
    Allocator, BookSimError, BookSimFile, Delivery, FlitNetwork, FlitNetworkSpec, GraphLink,
    GraphNode, GraphRouter, LatencyHistogram, NetworkParams, NocStats, PacketKind, RouterParams,
    SpecError, Topology, VcRange,
};
