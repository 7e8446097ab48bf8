//! A flit-level network of input-queued routers with virtual channels and credits.
//!
//! # What is modelled
//!
//! A packet is a train of flits. It waits in the unbounded injection queue of its source, takes a
//! virtual channel (VC) of the injection link for its whole length, and crosses one link and one
//! router after the other, one flit per link per cycle. In each router the head flit goes through
//! routing (`routing_delay` cycles, 0 with look-ahead), VC allocation (1), switch allocation (1)
//! and the crossbar (`crossbar_delay`); body flits follow through switch allocation and crossbar.
//! A flit moves only when the buffer of its VC at the far end of the link has a free slot, which
//! the upstream side knows from credits. Both allocators are one iteration of iSLIP, or separable
//! input-first, over requests, with the round-robin pointers of hardware.
//!
//! A hop takes `routing_delay + 3 + crossbar_delay + (link latency - 1)` cycles, so a packet of
//! `F` flits over `h` routers with unit links and look-ahead routing takes `4 h + 2 + F - 1`.
//! [`FlitNetworkSpec::zero_load_latency`] gives the figure for any pair.
//!
//! # Order inside a cycle
//!
//! Arrivals and credits due now; injections; in each router switch allocation over the requests
//! that stood before this cycle's VC allocation, VC allocation over the VCs that were free before
//! this cycle's switch traversal, then both take effect; ejection. Two routers never see each
//! other within a cycle (every link takes at least one), so the order among routers cannot matter.
//!
//! # Driving it
//!
//! ```
//! use tilesim_core::noc::{FlitNetwork, FlitNetworkSpec, NetworkParams, Topology};
//!
//! let params = NetworkParams::new(Topology::Crossbar { ports: 4 });
//! let spec = FlitNetworkSpec::try_from(params)?;
//! let mut network = FlitNetwork::new(&spec);
//! network.push(10, 0, 3, 1, 77);
//! // Nothing pushed later can arrive before `now + min_latency`, so that far may be simulated.
//! let mut out = vec![];
//! network.advance(&spec, 10 + FlitNetwork::min_latency(&spec) + 1, &mut out);
//! assert_eq!((out[0].cycle, out[0].dst, out[0].tag), (16, 3, 77));
//! # Ok::<(), tilesim_core::noc::SpecError>(())
//! ```
//!
//! A packet pushed at cycle `t` may leave its node in cycle `t`. A delivery at cycle `d` happens at
//! the end of that cycle: in TOGSim's order (ports first, then the network's step) a component
//! takes it in its NoC cycle `d + 1`.
//!
//! # How it runs
//!
//! Nothing ticks. Arrivals, credits and ejections sit in a wheel of one-cycle slots; requests sit in
//! bitmaps that change when a flit arrives, a credit returns or a VC frees, so a blocked packet
//! costs nothing, and a cycle visits only the output ports that can grant something. State is plain
//! data beside the validated [`FlitNetworkSpec`]; pools are recycled and nothing is allocated once
//! the largest backlog has been seen.
//!
//! # Deadlock freedom
//!
//! Routing is deterministic, one path per pair of nodes. A spec is refused unless the graph of
//! "a packet holding this link may wait for that one" is free of cycles, and every node sinks what
//! reaches it. A blocked packet therefore always waits for one that moves.
//!
//! # What is not
//!
//! Adaptive routing, speculation, shared buffers, several subnets, input or output speedup, packet
//! priorities. `docs/deviations/noc.md` lists the gaps to BookSim 2 with their size.

mod bits;
mod booksim;
mod network;
mod spec;
mod stats;
mod wheel;

pub use booksim::{BookSimError, BookSimFile};
pub use network::{Delivery, FlitNetwork};
pub use spec::{
    Allocator, FlitNetworkSpec, GraphLink, GraphNode, GraphRouter, NetworkParams, PacketKind,
    RouterParams, SpecError, Topology, VcRange,
};
pub use stats::{LatencyHistogram, NocStats};
