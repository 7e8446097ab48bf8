//! Running launches: results, single flight, cancellation, deadlines, a full queue.

use std::time::{Duration, Instant};

use tilesim_proto::v1;
use tonic::{Code, Request};
use tonic_types::StatusExt;

use crate::daemon::{Daemon, SLOW, request, slow_request};

/// How long a run may go on after nobody wants it any more, with room for a busy test machine.
const STOPS_WITHIN: Duration = Duration::from_millis(500);

#[tokio::test]
async fn the_main_job() {
    let daemon = Daemon::start(&[]).await;
    let trace = daemon.put_sample("gemm512_core_serial.json").await;
    // Figures of the reference for this trace on this machine.
    for (grid, cycles, requests) in [([1, 1], 9_806, 98_304), ([4, 4], 112_784, 1_572_864)] {
        let result = daemon.simulate(request(&trace, &grid)).await.unwrap();
        let report = result.report.unwrap();
        assert_eq!(
            (report.cycles, report.dram_requests),
            (cycles, requests),
            "{grid:?}"
        );
        for core in &report.cores {
            for unit in &core.units {
                assert_eq!(
                    unit.active_cycles + unit.idle_cycles,
                    cycles,
                    "{}",
                    unit.unit
                );
            }
            let stack = report.cycle_stack.iter().filter(|e| e.core == core.core);
            assert_eq!(stack.map(|e| e.cycles).sum::<u64>(), cycles);
        }
        assert_eq!(report.identity.unwrap().trace, trace);
        assert_eq!(result.envelope.unwrap().origin(), v1::Origin::Simulated);
    }
    let again = daemon.simulate(request(&trace, &[4, 4])).await.unwrap();
    assert_eq!(again.envelope.unwrap().origin(), v1::Origin::Cached);
}

#[tokio::test]
async fn an_empty_grid_is_a_success_with_a_note() {
    let daemon = Daemon::start(&[]).await;
    let trace = daemon.put_sample("gemm_256.json").await;
    let report = daemon
        .simulate(request(&trace, &[0, 4]))
        .await
        .unwrap()
        .report
        .unwrap();
    assert_eq!((report.cycles, report.work_items), (0, 0));
    assert_eq!(report.notes, ["the grid is empty: nothing ran"]);
}

#[tokio::test]
async fn a_cycle_count_of_2_to_the_31_is_fine() {
    let daemon = Daemon::start(&[]).await;
    let text = SLOW
        .replace("cycles 10", "cycles 2147483648")
        .replace("0..64", "0..1");
    let trace = daemon.put("x.tile", text.as_bytes()).await.unwrap();
    let report = daemon
        .simulate(request(&trace, &[1]))
        .await
        .unwrap()
        .report
        .unwrap();
    assert!(report.cycles > 1 << 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_requests_in_flight_run_once_and_a_cancel_hurts_nobody_else() {
    let daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    // Long enough that all three overlap, short enough to wait for.
    let mut question = request(&slow, &[2_000]);
    question
        .launch
        .as_mut()
        .unwrap()
        .params
        .insert("SALT".into(), 1);
    let ask = |question: v1::SimulateRequest| {
        let mut client = daemon.simulation();
        tokio::spawn(async move { client.simulate(question).await })
    };
    let first = ask(question.clone());
    daemon.wait_for("the run begins", |i| i.running == 1).await;
    let (second, third) = (ask(question.clone()), ask(question));
    daemon
        .wait_for("both join", |i| i.counters.unwrap().joined == 2)
        .await;
    // The one that started the run goes away first.
    first.abort();
    second.abort();
    let third = third.await.unwrap().unwrap().into_inner().result.unwrap();
    assert_eq!(third.envelope.unwrap().origin(), v1::Origin::Joined);
    let counters = daemon.info().await.counters.unwrap();
    assert_eq!((counters.simulations, counters.cancelled), (1, 0));
    let info = daemon.info().await;
    let (wait, run) = (info.queue_wait.unwrap(), info.run_time.unwrap());
    assert_eq!((wait.count, run.count), (1, 1));
    for times in [&wait, &run] {
        assert!(times.p50_us <= times.p90_us && times.p90_us <= times.p99_us);
        assert!(times.max_us >= times.p50_us);
    }
    assert!(run.p50_us > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_nobody_waits_for_stops() {
    let daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let mut client = daemon.simulation();
    let question = slow_request(&slow, 1);
    let call = tokio::spawn(async move { client.simulate(question).await });
    daemon.wait_for("the run begins", |i| i.running == 1).await;
    call.abort();
    let begin = Instant::now();
    daemon.wait_for("the run stops", |i| i.running == 0).await;
    println!("a cancelled run stopped within {:?}", begin.elapsed());
    assert!(begin.elapsed() < STOPS_WITHIN, "{:?}", begin.elapsed());
    assert_eq!(daemon.info().await.counters.unwrap().cancelled, 1);
}

#[tokio::test]
async fn a_deadline_stops_a_run() {
    let daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let mut question = Request::new(slow_request(&slow, 1));
    // The header alone, so that it is the server's answer that is seen, not the client's own timer.
    question
        .metadata_mut()
        .insert("grpc-timeout", "200m".parse().unwrap());
    let begin = Instant::now();
    let status = daemon.simulation().simulate(question).await.unwrap_err();
    let elapsed = begin.elapsed();
    assert!(
        elapsed >= Duration::from_millis(150) && elapsed < Duration::from_secs(5),
        "{elapsed:?}"
    );
    let told = (status.code(), status.message());
    // The client library reads the header too; on a busy machine its timer may win.
    assert!(
        told.0 == Code::DeadlineExceeded || told == (Code::Cancelled, "Timeout expired"),
        "{told:?}"
    );
    let begin = Instant::now();
    daemon.wait_for("the run stops", |i| i.running == 0).await;
    assert!(begin.elapsed() < STOPS_WITHIN, "{:?}", begin.elapsed());
    // The server answers the next request.
    daemon.simulate(request(&slow, &[1])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_says_when_to_come_back() {
    let daemon = Daemon::start(&["--workers", "1", "--queue", "2"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let mut calls = Vec::new();
    for salt in 0..3 {
        let (mut client, question) = (daemon.simulation(), slow_request(&slow, salt));
        calls.push(tokio::spawn(async move { client.simulate(question).await }));
    }
    daemon
        .wait_for("the queue is full", |i| (i.running, i.queued) == (1, 2))
        .await;
    let status = daemon.simulate(slow_request(&slow, 99)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "server.queue_full");
    let delay = details.retry_info().unwrap().retry_delay.unwrap();
    assert!(
        delay >= Duration::from_millis(100) && delay <= Duration::from_secs(30),
        "{delay:?}"
    );
    // One that waits in the queue can go away as well, and gives its room back at once.
    calls.pop().unwrap().abort();
    daemon.wait_for("there is room", |i| i.queued < 2).await;
    let (mut client, question) = (daemon.simulation(), slow_request(&slow, 100));
    calls.push(tokio::spawn(async move { client.simulate(question).await }));
    daemon
        .wait_for("the queue is full again", |i| {
            (i.running, i.queued) == (1, 2)
        })
        .await;
    for call in calls {
        call.abort();
    }
    daemon
        .wait_for("everything stops", |i| (i.running, i.queued) == (0, 0))
        .await;
    daemon.simulate(request(&slow, &[1])).await.unwrap();
}

#[tokio::test]
async fn a_cycle_budget_ends_a_run_by_its_own_measure() {
    let daemon = Daemon::start(&[]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let mut question = slow_request(&slow, 1);
    let options = v1::RunOptions {
        cycle_budget: Some(100_000),
        ..v1::RunOptions::default()
    };
    question.launch.as_mut().unwrap().options = Some(options);
    let status = daemon.simulate(question).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!(
        (info.reason.as_str(), info.metadata["cycles"].as_str()),
        ("run.over_budget", "100000")
    );
}

/// Not a test of speed: prints what a call costs on this machine, for the record.
#[tokio::test]
async fn the_cost_of_a_call() {
    let daemon = Daemon::start(&[]).await;
    let trace = daemon.put_sample("gemm_256.json").await;
    let mut times = Vec::new();
    for _ in 0..500 {
        let begin = Instant::now();
        daemon.simulate(request(&trace, &[1, 1])).await.unwrap();
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    println!(
        "a cached simulation: median {:?}, 99 % {:?}",
        times[250], times[495]
    );
    assert!(times[250] < Duration::from_millis(50));
}
