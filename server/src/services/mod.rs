//! The gRPC services: thin. Each turns a message into domain types, asks, and turns the answer
//! back.

mod info;
mod machines;
mod simulation;
mod traces;

use std::{sync::Arc, time::Instant};

use tilesim_proto::TENANT_HEADER;
use tonic::Request;

use crate::{App, error::ServiceError, guard::Deadline, ids::Tenant};

/// All services over one application.
#[derive(Clone)]
pub struct Services {
    pub(crate) app: Arc<App>,
}

/// Whose request it is and how long it may take.
struct Caller {
    tenant: Tenant,
    deadline: Option<Instant>,
}

impl Services {
    /// Who calls; refused while the server drains.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, ServiceError> {
        if self.app.draining() {
            return Err(ServiceError::shutting_down());
        }
        let tenant = match request.metadata().get(TENANT_HEADER) {
            None => Tenant::default(),
            Some(value) => Tenant::parse(value.to_str().unwrap_or("\u{fffd}"))?,
        };
        let deadline = request.extensions().get::<Deadline>().map(|d| d.0);
        Ok(Caller { tenant, deadline })
    }
}

/// Size of a page and where it begins.
fn page(size: u32, token: &str) -> Result<(usize, Option<crate::ids::Digest>), ServiceError> {
    const LARGEST: u32 = 1000;
    let size = match size {
        0 => 100,
        size if size <= LARGEST => size,
        size => {
            return Err(ServiceError::invalid(
                "request.above_limit",
                "page_size",
                format!("{size} is above the limit of {LARGEST}"),
            )
            .hint("ask for smaller pages, one after another"));
        }
    };
    let after = match token {
        "" => None,
        token => Some(token.parse().map_err(|()| {
            ServiceError::invalid("request.bad_page_token", "page_token", "not a page token")
                .hint("use `next_page_token` of the page before")
        })?),
    };
    Ok((size as usize, after))
}

/// The token of the page after one that may be the last.
fn next_page(entries: &mut Vec<crate::store::Entry>, size: usize) -> String {
    if entries.len() <= size {
        return String::new();
    }
    entries.truncate(size);
    entries
        .last()
        .map(|e| e.digest.to_string())
        .unwrap_or_default()
}
