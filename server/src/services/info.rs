//! `tilesim.v1.Server`.

use std::sync::atomic::Ordering;

use tilesim_core::MODEL_VERSION;
use tilesim_proto::v1::{self, server_server::Server};
use tonic::{Request, Response, Status, async_trait};

use super::Services;
use crate::runner::Quantiles;

fn durations(seen: Quantiles) -> v1::Durations {
    v1::Durations {
        count: seen.count,
        p50_us: seen.p50,
        p90_us: seen.p90,
        p99_us: seen.p99,
        max_us: seen.max,
    }
}

#[async_trait]
impl Server for Services {
    async fn info(
        &self,
        _: Request<v1::ServerInfoRequest>,
    ) -> Result<Response<v1::ServerInfoResponse>, Status> {
        let app = &self.app;
        let limits = &app.config.limits;
        let counters = app.runner.counters();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Response::new(v1::ServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model_version: MODEL_VERSION.to_owned(),
            workers: app.config.workers as u32,
            queue_capacity: app.config.queue as u32,
            queued: app.runner.queued() as u32,
            running: app.runner.running() as u32,
            draining: app.draining(),
            limits: Some(v1::ServerLimits {
                message_bytes: limits.message_bytes as u64,
                trace_bytes: limits.trace_bytes,
                work_items: limits.work_items,
                requests: limits.requests,
                candidates: limits.candidates,
                launches_per_candidate: limits.launches_per_candidate,
                digests: limits.digests,
                tenant_bytes: limits.tenant_bytes,
            }),
            uptime_ms: app.started.elapsed().as_millis() as u64,
            counters: Some(v1::ServerCounters {
                simulations: load(&counters.simulations),
                cache_hits: load(&counters.cache_hits),
                joined: load(&counters.joined),
                cancelled: load(&counters.cancelled),
                store_damage: app.store.damage(),
            }),
            queue_wait: Some(durations(app.runner.waits())),
            run_time: Some(durations(app.runner.runs())),
        }))
    }
}
