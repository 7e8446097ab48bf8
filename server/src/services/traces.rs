//! `tilesim.v1.Traces`.

use std::{pin::Pin, sync::Arc, time::Duration};

use tilesim_proto::v1::{self, traces_server::Traces, upload_trace_request::Part};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Services, next_page, page};
use crate::{
    error::{Kind, ServiceError},
    guard::incoming,
    ids::Digest,
    store::ObjectKind,
    wire,
};

/// How long a client may leave an upload without data.
const STALL: Duration = Duration::from_secs(30);
/// Bytes of one part of a download.
const CHUNK: usize = 64 << 10;

#[async_trait]
impl Traces for Services {
    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadTraceRequest>>,
    ) -> Result<Response<v1::UploadTraceResponse>, Status> {
        let caller = self.caller(&request)?;
        let mut parts = request.into_inner();
        let header = match next(&mut parts).await? {
            Some(Part::Header(header)) => header,
            _ => {
                return Err(ServiceError::invalid(
                    "request.no_header",
                    "header",
                    "an upload begins with its header",
                )
                .hint("send the file's name and size first")
                .into());
            }
        };
        let name = wire::name(header.name, "header.name")?;
        // Memory for all uploads together is bounded: an upload takes its share before it begins.
        let _share = self.app.upload_share(header.size_bytes)?;
        let mut bytes = Vec::with_capacity(header.size_bytes.min(1 << 20) as usize);
        while let Some(part) = next(&mut parts).await? {
            let Part::Data(data) = part else {
                let message = "an upload has one header";
                return Err(
                    ServiceError::invalid("request.second_header", "header", message)
                        .hint("send each trace in an upload of its own")
                        .into(),
                );
            };
            if bytes.len() as u64 + data.len() as u64 > header.size_bytes {
                return Err(wrong_size(header.size_bytes, "more").into());
            }
            bytes.extend_from_slice(&data);
        }
        if (bytes.len() as u64) < header.size_bytes {
            return Err(wrong_size(header.size_bytes, "less").into());
        }
        let (trace, new) = self
            .app
            .catalog
            .put_trace(&caller.tenant, name, bytes)
            .await?;
        Ok(Response::new(v1::UploadTraceResponse {
            trace: Some(wire::trace_info(&trace)),
            already_present: !new,
        }))
    }

    async fn find_missing(
        &self,
        request: Request<v1::FindMissingTracesRequest>,
    ) -> Result<Response<v1::FindMissingTracesResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::FindMissingTracesRequest { digests } = request.into_inner();
        wire::at_most(digests.len(), self.app.config.limits.digests, "digests")?;
        let digests = digests
            .iter()
            .enumerate()
            .map(|(i, digest)| Digest::parse(digest, &format!("digests[{i}]")))
            .collect::<Result<Vec<_>, _>>()?;
        let missing = self
            .app
            .catalog
            .missing_traces(&caller.tenant, digests)
            .await?;
        let missing = missing.iter().map(ToString::to_string).collect();
        Ok(Response::new(v1::FindMissingTracesResponse { missing }))
    }

    async fn describe(
        &self,
        request: Request<v1::DescribeTraceRequest>,
    ) -> Result<Response<v1::DescribeTraceResponse>, Status> {
        let caller = self.caller(&request)?;
        let digest = Digest::parse(&request.into_inner().digest, "digest")?;
        let trace = self
            .app
            .catalog
            .trace(&caller.tenant, digest, "digest")
            .await?;
        let trace = Some(wire::trace_info(&trace));
        Ok(Response::new(v1::DescribeTraceResponse { trace }))
    }

    type GetStream = Pin<Box<dyn Stream<Item = Result<v1::GetTraceResponse, Status>> + Send>>;

    async fn get(
        &self,
        request: Request<v1::GetTraceRequest>,
    ) -> Result<Response<Self::GetStream>, Status> {
        let caller = self.caller(&request)?;
        let v1::GetTraceRequest { digest, encoding } = request.into_inner();
        let text = match v1::TraceEncoding::try_from(encoding) {
            Ok(v1::TraceEncoding::Text) => true,
            Ok(_) => false,
            Err(_) => {
                let message = format!("{encoding} is not an encoding");
                return Err(
                    ServiceError::invalid("request.bad_encoding", "encoding", message)
                        .hint("ask for TRACE_ENCODING_BINARY or TRACE_ENCODING_TEXT")
                        .into(),
                );
            }
        };
        let digest = Digest::parse(&digest, "digest")?;
        let trace = self
            .app
            .catalog
            .trace(&caller.tenant, digest, "digest")
            .await?;
        let bytes = self.app.catalog.encode_trace(trace, text).await?;
        let bytes: Arc<[u8]> = bytes.into();
        let parts = (0..bytes.len().div_ceil(CHUNK)).map(move |i| {
            let end = bytes.len().min((i + 1) * CHUNK);
            Ok(v1::GetTraceResponse {
                data: bytes[i * CHUNK..end].to_vec(),
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn list(
        &self,
        request: Request<v1::ListTracesRequest>,
    ) -> Result<Response<v1::ListTracesResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::ListTracesRequest {
            page_size,
            page_token,
        } = request.into_inner();
        let (size, after) = page(page_size, &page_token)?;
        let kind = ObjectKind::Trace;
        let mut entries = self
            .app
            .catalog
            .list(&caller.tenant, kind, after, size + 1)
            .await?;
        let next_page_token = next_page(&mut entries, size);
        let traces = entries.into_iter().map(wire::stored).collect();
        Ok(Response::new(v1::ListTracesResponse {
            traces,
            next_page_token,
        }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteTraceRequest>,
    ) -> Result<Response<v1::DeleteTraceResponse>, Status> {
        let caller = self.caller(&request)?;
        let digest = Digest::parse(&request.into_inner().digest, "digest")?;
        self.app
            .catalog
            .delete_trace(&caller.tenant, digest, "digest")
            .await?;
        Ok(Response::new(v1::DeleteTraceResponse {}))
    }
}

/// The next part of an upload that says anything.
async fn next(parts: &mut Streaming<v1::UploadTraceRequest>) -> Result<Option<Part>, ServiceError> {
    loop {
        let message = tokio::time::timeout(STALL, parts.message())
            .await
            .map_err(|_| {
                ServiceError::new(
                    Kind::Deadline,
                    "request.stalled",
                    "",
                    format!("no data came for {} s", STALL.as_secs()),
                )
                .hint("send the upload again, without pauses")
            })?;
        match message.map_err(incoming)? {
            None => return Ok(None),
            Some(v1::UploadTraceRequest { part: Some(part) }) => return Ok(Some(part)),
            Some(_) => {}
        }
    }
}

fn wrong_size(announced: u64, how: &str) -> ServiceError {
    ServiceError::invalid(
        "request.wrong_size",
        "header.size_bytes",
        format!("the header announced {announced} bytes, but there are {how}"),
    )
    .hint("announce the file's size in bytes")
}
