//! What holds for every call, whatever its service: the deadline, and the shape of errors that the
//! transport itself makes.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tonic::{Code, Status, body::Body, codegen::http};
use tower::{Layer, Service};

use crate::error::{Kind, ServiceError};

/// When the client stops waiting; an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(pub Instant);

/// How much earlier than the client's deadline the server answers, so that the client still hears
/// why, and the transport's own timer does not come first.
const EARLY: Duration = Duration::from_millis(2);

/// Makes a [`Guard`] of a service.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardLayer;

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner }
    }
}

/// A service behind the guard.
#[derive(Clone, Debug)]
pub struct Guard<S> {
    inner: S,
}

impl<S> Service<http::Request<Body>> for Guard<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let begin = Instant::now();
        let deadline = timeout(request.headers()).and_then(|t| begin.checked_add(t));
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(Deadline(deadline));
        }
        let path = request.uri().path().to_owned();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = match deadline {
                None => answer.await?,
                Some(deadline) => match tokio::time::timeout_at(deadline.into(), answer).await {
                    Ok(response) => response?,
                    Err(_) => Status::from(ServiceError::deadline()).into_http(),
                },
            };
            let response = reshape(response);
            tracing::debug!(%path, status = ?status_of(&response), elapsed = ?begin.elapsed(), "call");
            Ok(response)
        })
    }
}

fn status_of(response: &http::Response<Body>) -> Option<&http::HeaderValue> {
    response.headers().get(Status::GRPC_STATUS)
}

/// A message over the limit is refused by the transport, in words of its own. Say it in ours.
fn reshape(response: http::Response<Body>) -> http::Response<Body> {
    let too_large = Code::OutOfRange as i32;
    if status_of(&response).is_none_or(|s| s.as_bytes() != too_large.to_string().as_bytes()) {
        return response;
    }
    match Status::from_header_map(response.headers()) {
        Some(status) => Status::from(incoming(status)).into_http(),
        None => response,
    }
}

/// What an error of the transport means that was met while a request was read.
pub fn incoming(status: Status) -> ServiceError {
    match status.code() {
        // Our own services never answer with this code, so that only the transport's check of a
        // message's length is meant.
        Code::OutOfRange => {
            let message = status.message().trim_start_matches("Error, ").to_owned();
            ServiceError::invalid("request.message_too_large", "", message)
                .hint("send traces in chunks, and split long lists")
        }
        Code::Cancelled => ServiceError::cancelled(),
        _ => ServiceError::new(
            Kind::Invalid,
            "request.malformed",
            "",
            format!("the request cannot be read: {}", status.message()),
        ),
    }
}

/// The `grpc-timeout` header: up to eight digits and a unit.
fn timeout(headers: &http::HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    let timeout = match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    };
    Some(timeout.saturating_sub(EARLY.min(timeout / 10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_timeouts() {
        let read = |text: &str| {
            let mut headers = http::HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(read("1S"), Some(Duration::from_millis(998)));
        assert_eq!(read("10m"), Some(Duration::from_millis(9)));
        assert_eq!(
            read("99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600) - EARLY)
        );
        for bad in ["", "S", "1", "1x", "-1S", "123456789S", "1é"] {
            let mut headers = http::HeaderMap::new();
            if let Ok(value) = http::HeaderValue::from_bytes(bad.as_bytes()) {
                headers.insert("grpc-timeout", value);
            }
            assert_eq!(timeout(&headers), None, "{bad}");
        }
    }
}
