//! Traces and machines in the store.

use tilesim_proto::{TENANT_HEADER, v1};
use tonic::{Code, Request};

use crate::daemon::{Daemon, machine, request, sample, upload};

async fn download(daemon: &Daemon, digest: &str, encoding: v1::TraceEncoding) -> Vec<u8> {
    let request = v1::GetTraceRequest {
        digest: digest.to_owned(),
        encoding: encoding.into(),
    };
    let mut parts = daemon.traces().get(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(part) = parts.message().await.unwrap() {
        bytes.extend(part.data);
    }
    bytes
}

#[tokio::test]
async fn a_trace_goes_in_and_comes_out() {
    let daemon = Daemon::start(&[]).await;
    let digest = daemon.put_sample("gemm_256.json").await;
    let described = daemon
        .traces()
        .describe(v1::DescribeTraceRequest {
            digest: digest.clone(),
        })
        .await
        .unwrap()
        .into_inner()
        .trace
        .unwrap();
    assert_eq!((described.kernel.as_str(), described.axes), ("gemm_256", 2));
    assert_eq!(described.tensors.len(), 3);
    // Every encoding of one trace has one digest: uploading what came out changes nothing.
    for encoding in [v1::TraceEncoding::Binary, v1::TraceEncoding::Text] {
        let bytes = download(&daemon, &digest, encoding).await;
        let answer = daemon
            .traces()
            .upload(Request::new(tokio_stream::iter(upload("again", &bytes))))
            .await
            .unwrap()
            .into_inner();
        assert!(answer.already_present);
        assert_eq!(answer.trace.unwrap().digest, digest);
    }
    let missing = "0".repeat(64);
    let question = v1::FindMissingTracesRequest {
        digests: vec![digest.clone(), missing.clone()],
    };
    let answer = daemon
        .traces()
        .find_missing(question)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.missing, [missing]);
    daemon
        .traces()
        .delete(v1::DeleteTraceRequest {
            digest: digest.clone(),
        })
        .await
        .unwrap();
    let status = daemon
        .simulate(request(&digest, &[1, 1]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn lists_go_in_pages() {
    let daemon = Daemon::start(&[]).await;
    let mut digests = Vec::new();
    for name in [
        "gemm_256.json",
        "softmax_rows.json",
        "vecadd_sync.json",
        "int8_bytes.json",
    ] {
        digests.push(daemon.put_sample(name).await);
    }
    digests.sort();
    let mut listed = Vec::new();
    let mut page_token = String::new();
    loop {
        let question = v1::ListTracesRequest {
            page_size: 3,
            page_token,
        };
        let page = daemon.traces().list(question).await.unwrap().into_inner();
        assert!(page.traces.len() <= 3);
        listed.extend(page.traces.into_iter().map(|t| t.digest));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, digests);
}

#[tokio::test]
async fn tenants_see_nothing_of_each_other() {
    let daemon = Daemon::start(&[]).await;
    let digest = daemon.put_sample("gemm_256.json").await;
    let mut question = Request::new(v1::DescribeTraceRequest {
        digest: digest.clone(),
    });
    question
        .metadata_mut()
        .insert(TENANT_HEADER, "other".parse().unwrap());
    assert_eq!(
        daemon.traces().describe(question).await.unwrap_err().code(),
        Code::NotFound
    );
    let mut question = Request::new(request(&digest, &[1, 1]));
    question
        .metadata_mut()
        .insert(TENANT_HEADER, "other".parse().unwrap());
    assert_eq!(
        daemon
            .simulation()
            .simulate(question)
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(folder.path(), &[]).await;
    let digest = daemon.put_sample("gemm_256.json").await;
    let first = daemon.simulate(request(&digest, &[2, 2])).await.unwrap();
    let put = v1::PutMachineRequest {
        name: "mine".into(),
        document: "clocks: {core_mhz: 940}\ndram: {channels: 4, latency_cycles: 60}".into(),
    };
    let stored = daemon
        .machines()
        .put(put)
        .await
        .unwrap()
        .into_inner()
        .machine
        .unwrap();
    daemon.stop().await;

    let daemon = Daemon::start_in(folder.path(), &[]).await;
    let again = daemon.simulate(request(&digest, &[2, 2])).await.unwrap();
    assert_eq!(again.report, first.report);
    assert_eq!(again.envelope.unwrap().origin(), v1::Origin::Cached);
    assert_eq!(daemon.info().await.counters.unwrap().simulations, 0);
    let mut question = request(&digest, &[1, 1]);
    question.machine.as_mut().unwrap().source =
        Some(v1::machine_ref::Source::Digest(stored.digest.clone()));
    let result = daemon.simulate(question).await.unwrap();
    assert_eq!(
        result.report.unwrap().identity.unwrap().machine,
        stored.digest
    );
}

#[tokio::test]
async fn a_killed_server_loses_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start_in(folder.path(), &[]).await;
    let digest = daemon.put_sample("gemm_256.json").await;
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended().await;
    let daemon = Daemon::start_in(folder.path(), &[]).await;
    daemon.simulate(request(&digest, &[1, 1])).await.unwrap();
}

#[tokio::test]
async fn damage_is_reported_and_an_upload_repairs_it() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_in(folder.path(), &[]).await;
    let digest = daemon.put_sample("gemm_256.json").await;
    let path = daemon.store.join("objects/default/traces").join(&digest);
    daemon.stop().await;
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let daemon = Daemon::start_in(folder.path(), &[]).await;
    let status = daemon
        .simulate(request(&digest, &[1, 1]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DataLoss);
    assert!(
        status.message().contains("is damaged"),
        "{}",
        status.message()
    );
    assert_eq!(daemon.info().await.counters.unwrap().store_damage, 1);
    assert_eq!(daemon.put_sample("gemm_256.json").await, digest);
    daemon.simulate(request(&digest, &[1, 1])).await.unwrap();
}

#[tokio::test]
async fn machines_are_listed_described_and_checked() {
    let daemon = Daemon::start(&[]).await;
    let list = daemon
        .machines()
        .list(v1::ListMachinesRequest::default())
        .await
        .unwrap();
    let presets = list.into_inner().presets;
    assert!(
        presets.iter().any(|p| p.name == "tpuv3_simple_dram"),
        "{presets:?}"
    );
    let question = v1::DescribeMachineRequest {
        machine: Some(machine()),
    };
    let described = daemon
        .machines()
        .describe(question)
        .await
        .unwrap()
        .into_inner();
    let info = described.machine.unwrap();
    assert!(!info.peaks.is_empty());
    // The document stands for the machine it came from.
    let source = Some(v1::machine_ref::Source::Document(described.document));
    let question = v1::CheckMachineRequest {
        machine: Some(v1::MachineRef {
            source,
            overrides: vec![],
        }),
    };
    let checked = daemon
        .machines()
        .check(question)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(checked.machine.unwrap().digest, info.digest);
}

#[tokio::test]
async fn a_tenant_has_a_quota() {
    let daemon = Daemon::start(&["--tenant-bytes", "400"]).await;
    daemon.put_sample("gemm_256.json").await;
    let bytes = std::fs::read(sample("gemm512_core_serial.json")).unwrap();
    let status = daemon.put("x", &bytes).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().contains("would exceed"),
        "{}",
        status.message()
    );
}
