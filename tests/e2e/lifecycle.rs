//! Starting, health, reflection, draining.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::daemon::{Daemon, SLOW, program, request, slow_request};

#[tokio::test]
async fn health_and_info() {
    let daemon = Daemon::start(&["--workers", "2", "--queue", "5"]).await;
    for service in ["", "tilesim.v1.Simulation"] {
        let question = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = HealthClient::new(daemon.channel())
            .check(question)
            .await
            .unwrap();
        assert_eq!(answer.into_inner().status, 1, "{service}");
    }
    let info = daemon.info().await;
    assert_eq!((info.workers, info.queue_capacity), (2, 5));
    assert!(!info.draining && !info.model_version.is_empty());
}

#[tokio::test]
async fn reflection_in_both_versions() {
    let daemon = Daemon::start(&[]).await;
    let expected = [
        "tilesim.v1.Traces",
        "tilesim.v1.Simulation",
        "grpc.health.v1.Health",
    ];
    macro_rules! services {
        ($version:ident) => {{
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest,
                server_reflection_response::MessageResponse,
            };
            let question = ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::ListServices(String::new())),
            };
            let mut client = ServerReflectionClient::new(daemon.channel());
            let answers = client
                .server_reflection_info(tokio_stream::iter([question]))
                .await
                .unwrap();
            let answer = answers.into_inner().next().await.unwrap().unwrap();
            match answer.message_response.unwrap() {
                MessageResponse::ListServicesResponse(list) => {
                    list.service.into_iter().map(|s| s.name).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        }};
    }
    for services in [services!(v1), services!(v1alpha)] {
        for service in expected {
            assert!(
                services.iter().any(|s| s == service),
                "{service} in {services:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_work_end() {
    let mut daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let (mut client, question) = (daemon.simulation(), request(&slow, &[2_000]));
    let call = tokio::spawn(async move { client.simulate(question).await });
    daemon.wait_for("the run begins", |i| i.running == 1).await;
    daemon.signal(Signal::TERM);
    call.await.unwrap().unwrap();
    assert!(daemon.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_has_a_limit() {
    let mut daemon = Daemon::start(&["--workers", "1", "--drain-seconds", "0.2"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let (mut client, question) = (daemon.simulation(), slow_request(&slow, 1));
    let call = tokio::spawn(async move { client.simulate(question).await });
    daemon.wait_for("the run begins", |i| i.running == 1).await;
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(daemon.ended().await.success());
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn a_drain_does_not_wait_for_idle_streams() {
    let mut daemon = Daemon::start(&[]).await;
    let question = HealthCheckRequest {
        service: String::new(),
    };
    let watch = HealthClient::new(daemon.channel())
        .watch(question)
        .await
        .unwrap();
    let mut states = watch.into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().status, 1);
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    assert_eq!(
        states.message().await.unwrap().unwrap().status,
        2,
        "not serving any more"
    );
    assert!(daemon.ended().await.success());
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn bytes_that_are_no_grpc_hurt_nobody() {
    use std::io::{Read as _, Write as _};
    let daemon = Daemon::start(&[]).await;
    let trace = daemon.put_sample("gemm_256.json").await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let frame = [preface.as_slice(), &[0xff; 64]].concat();
    let noise: Vec<u8> = (0..20_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut idle = Vec::new();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame,
        noise,
        preface,
        Vec::new(),
    ] {
        let mut socket = std::net::TcpStream::connect(&daemon.address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        // The server may hang up at any byte.
        let _ = socket.write_all(&bytes);
        let _ = socket.read(&mut [0; 64]);
        idle.push(socket);
        daemon.simulate(request(&trace, &[1, 1])).await.unwrap();
    }
}

#[tokio::test]
async fn a_second_server_on_one_store_is_refused() {
    let daemon = Daemon::start(&[]).await;
    let output = Command::new(program("tilesimd"))
        .args(["--listen", "127.0.0.1:0", "--store"])
        .arg(&daemon.store)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("in use by another process"), "{text}");
}

#[test]
fn settings_are_checked() {
    for (flag, value) in [
        ("--workers", "0"),
        ("--queue", "0"),
        ("--drain-seconds", "-1"),
    ] {
        let output = Command::new(program("tilesimd"))
            .arg(format!("{flag}={value}"))
            .output()
            .unwrap();
        assert!(!output.status.success(), "{flag}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(flag),
            "{flag}"
        );
    }
}
