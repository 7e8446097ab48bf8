//! Rankings and replays.

use tilesim_proto::v1::{self, CandidateStatus as Status};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::daemon::{Daemon, SLOW, launch, machine, slow_request};

fn candidate(key: &str, launches: Vec<v1::Launch>) -> v1::Candidate {
    let launches = launches
        .into_iter()
        .map(|launch| v1::WeightedLaunch {
            launch: Some(launch),
            weight: 1,
        })
        .collect();
    v1::Candidate {
        key: key.to_owned(),
        launches,
        pre_failure: None,
    }
}

async fn rank(
    daemon: &Daemon,
    candidates: Vec<v1::Candidate>,
) -> (Vec<v1::CandidateOutcome>, v1::RankOrder) {
    use v1::rank_response::Part;
    let question = v1::RankRequest {
        machine: Some(machine()),
        candidates,
        top_k: 0,
    };
    let mut parts = daemon
        .simulation()
        .rank(question)
        .await
        .unwrap()
        .into_inner();
    let mut outcomes = Vec::new();
    let mut order = None;
    while let Some(part) = parts.message().await.unwrap() {
        assert!(order.is_none(), "the order is the last part");
        match part.part.unwrap() {
            Part::Outcome(outcome) => outcomes.push(outcome),
            Part::Order(o) => order = Some(o),
        }
    }
    outcomes.sort_by_key(|o| o.index);
    (outcomes, order.unwrap())
}

#[tokio::test]
async fn every_candidate_gets_one_status_and_failures_sink_nobody() {
    let daemon = Daemon::start(&[]).await;
    let gemm = daemon.put_sample("gemm_256.json").await;
    let mut over = launch(&gemm, &[2, 2]);
    over.options = Some(v1::RunOptions {
        cycle_budget: Some(10),
        ..Default::default()
    });
    let problem = v1::Problem {
        code: "compiler".into(),
        message: "no".into(),
        ..Default::default()
    };
    let failed_before = v1::Candidate {
        key: "f".into(),
        launches: vec![],
        pre_failure: Some(problem.clone()),
    };
    let mut twice = candidate("h", vec![launch(&gemm, &[1, 1])]);
    twice.launches[0].weight = 2;
    let candidates = vec![
        candidate("a", vec![launch(&gemm, &[2, 2])]),
        candidate("b", vec![launch(&gemm, &[1, 1])]),
        candidate("c", vec![launch(&gemm, &[1, 1, 1])]),
        candidate("d", vec![over]),
        candidate("e", vec![launch(&gemm, &[2, 2])]),
        failed_before,
        candidate("g", vec![launch(&"0".repeat(64), &[1, 1])]),
        twice,
        candidate("i", vec![launch(&gemm, &[1, 1]), launch(&gemm, &[2, 2])]),
        candidate("j", vec![]),
    ];
    let (outcomes, order) = rank(&daemon, candidates).await;
    let statuses: Vec<Status> = outcomes.iter().map(|o| o.status()).collect();
    use Status::{DuplicateOf, Failed, Ok, OverBudget};
    assert_eq!(
        statuses,
        [
            Ok,
            Ok,
            Failed,
            OverBudget,
            DuplicateOf,
            Failed,
            Failed,
            Ok,
            Ok,
            Failed
        ]
    );
    let code = |i: usize| outcomes[i].problem.as_ref().unwrap().code.as_str();
    assert_eq!(
        [code(2), code(5), code(6), code(9)],
        [
            "launch.axis_count",
            "compiler",
            "trace.not_found",
            "rank.no_launches"
        ]
    );
    assert_eq!(outcomes[5].problem.as_ref().unwrap(), &problem);
    assert_eq!(outcomes[4].duplicate_of, Some(0));
    assert_eq!(outcomes[3].budget_cycles, Some(10));
    let (a, b) = (outcomes[0].score.unwrap(), outcomes[1].score.unwrap());
    assert_eq!(outcomes[7].score, Some(2 * b));
    assert_eq!(outcomes[8].score, Some(a + b));
    assert_eq!(outcomes[8].results.len(), 2);
    let mut expected = vec![(b, 1), (a, 0), (a, 4), (2 * b, 7), (a + b, 8)];
    expected.sort();
    let ranked: Vec<(u64, u32)> = order.ranked.iter().map(|r| (r.score, r.index)).collect();
    assert_eq!(ranked, expected);
    let group = |index| {
        order
            .ranked
            .iter()
            .find(|r| r.index == index)
            .unwrap()
            .tie_group
    };
    assert_eq!(group(0), group(4));
    assert!(order.ranked.iter().all(|r| r.margin == r.score - b));
}

#[tokio::test]
async fn the_order_does_not_depend_on_workers_or_cache() {
    let mut orders = Vec::new();
    for workers in ["1", "3"] {
        let daemon = Daemon::start(&["--workers", workers]).await;
        let add = daemon.put_sample("vecadd_sync.json").await;
        let candidates: Vec<_> = (0..16)
            .map(|i| candidate(&format!("c{i}"), vec![launch(&add, &[1 + i * 7 % 16])]))
            .collect();
        orders.push(rank(&daemon, candidates.clone()).await.1);
        orders.push(rank(&daemon, candidates).await.1);
    }
    assert_eq!(orders[0].ranked.len(), 16);
    assert!(orders.iter().all(|o| o == &orders[0]));
}

#[tokio::test]
async fn all_failed_is_a_success_that_says_so() {
    let daemon = Daemon::start(&[]).await;
    let gemm = daemon.put_sample("gemm_256.json").await;
    let candidates = vec![
        candidate("a", vec![launch(&gemm, &[1])]),
        candidate("b", vec![]),
    ];
    let (outcomes, order) = rank(&daemon, candidates).await;
    assert!(outcomes.iter().all(|o| o.status() == Status::Failed));
    assert!(order.ranked.is_empty());
    assert_eq!(order.note, "no candidate has a score");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ranking_that_nobody_reads_stops() {
    let daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let candidates = (0..10)
        .map(|i| candidate("", vec![slow_request(&slow, i).launch.unwrap()]))
        .collect();
    let question = v1::RankRequest {
        machine: Some(machine()),
        candidates,
        top_k: 0,
    };
    let parts = daemon.simulation().rank(question).await.unwrap();
    daemon.wait_for("it begins", |i| i.running == 1).await;
    drop(parts);
    daemon
        .wait_for("it stops", |i| (i.running, i.queued) == (0, 0))
        .await;
}

#[tokio::test]
async fn a_ranking_has_a_deadline() {
    let daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let candidates = vec![candidate("", vec![slow_request(&slow, 1).launch.unwrap()])];
    let mut question = tonic::Request::new(v1::RankRequest {
        machine: Some(machine()),
        candidates,
        top_k: 0,
    });
    question
        .metadata_mut()
        .insert("grpc-timeout", "200m".parse().unwrap());
    let mut parts = daemon
        .simulation()
        .rank(question)
        .await
        .unwrap()
        .into_inner();
    let status = parts.message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    daemon.wait_for("it stops", |i| i.running == 0).await;
}

#[tokio::test]
async fn a_replay_answers_each_launch() {
    let daemon = Daemon::start(&[]).await;
    let gemm = daemon.put_sample("gemm_256.json").await;
    let requests: Vec<_> = (0..20_u64)
        .map(|i| v1::ReplayRequest {
            key: format!("k{i}"),
            machine: Some(machine()),
            launch: Some(launch(&gemm, if i == 7 { &[1] } else { &[1, 2] })),
        })
        .collect();
    let answers = daemon
        .simulation()
        .replay(tokio_stream::iter(requests))
        .await
        .unwrap();
    let mut answers: Vec<_> = answers.into_inner().map(|a| a.unwrap()).collect().await;
    answers.sort_by_key(|a| a.index);
    assert_eq!(answers.len(), 20);
    for (i, answer) in answers.iter().enumerate() {
        use v1::replay_response::Outcome;
        assert_eq!(
            (answer.index, answer.key.as_str()),
            (i as u64, format!("k{i}").as_str())
        );
        match answer.outcome.as_ref().unwrap() {
            Outcome::Problem(problem) if i == 7 => assert_eq!(problem.code, "launch.axis_count"),
            Outcome::Result(_) if i != 7 => {}
            other => panic!("{i}: {other:?}"),
        }
    }
}
