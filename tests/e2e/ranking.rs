//! Rankings and replays.

use rustix::process::Signal;
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
    rank_top(daemon, candidates, 0).await
}

async fn rank_top(
    daemon: &Daemon,
    candidates: Vec<v1::Candidate>,
    top_k: u32,
) -> (Vec<v1::CandidateOutcome>, v1::RankOrder) {
    use v1::rank_response::Part;
    let question = v1::RankRequest {
        machine: Some(machine()),
        candidates,
        top_k,
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

/// Configurations of a matmul, with what does not fit, what repeats another, what failed before, and one
/// of two shapes.
async fn matmul_candidates(daemon: &Daemon) -> Vec<v1::Candidate> {
    use tilesim_traces::kernels::{self, CostModel, Kernel, KernelSpec, Matmul};
    let mut candidates = Vec::new();
    for tile_m in [16, 32, 64, 128] {
        for tile_n in [16, 32, 64, 128] {
            for tile_k in [16, 64, 128] {
                for stages in [1, 2] {
                    let matmul = Matmul {
                        stages,
                        ..Matmul::new(200, 150, 130, [tile_m, tile_n, tile_k])
                    };
                    let spec = KernelSpec::new(Kernel::Matmul(matmul), CostModel::default());
                    let trace = kernels::generate(&spec).unwrap();
                    let trace = tilesim_traces::ValidTrace::try_from(trace).unwrap();
                    let bytes = tilesim_traces::to_container(&trace).unwrap();
                    let digest = daemon.put("matmul", &bytes).await.unwrap();
                    let args = kernels::launch(&spec).unwrap();
                    let mut one = launch(&digest, &args.grid);
                    one.params = args.params;
                    let key = format!("{tile_m}x{tile_n}x{tile_k}_s{stages}");
                    candidates.push(candidate(&key, vec![one]));
                }
            }
        }
    }
    candidates.push(candidates[3].clone());
    candidates.push(v1::Candidate {
        key: "failed".into(),
        launches: vec![],
        pre_failure: Some(v1::Problem::default()),
    });
    let two = [0, 5].map(|i: usize| candidates[i].launches[0].launch.clone().unwrap());
    candidates.push(candidate("two", two.to_vec()));
    let mut wrong = two[0].clone();
    wrong.grid.push(1);
    candidates.push(candidate("wrong", vec![wrong]));
    candidates
}

/// The part of an answer that depends on the request alone.
fn deterministic(
    (mut outcomes, order): (Vec<v1::CandidateOutcome>, v1::RankOrder),
) -> (Vec<v1::CandidateOutcome>, v1::RankOrder) {
    for result in outcomes.iter_mut().flat_map(|o| &mut o.results) {
        result.envelope = None;
    }
    (outcomes, order)
}

#[tokio::test]
async fn the_best_are_those_of_the_whole_ranking() {
    let daemon = Daemon::start(&["--workers", "2"]).await;
    let candidates = matmul_candidates(&daemon).await;
    let (all, full) = rank(&daemon, candidates.clone()).await;
    for top_k in [1, 3, 1000] {
        let mut answers = Vec::new();
        for workers in ["1", "3"] {
            // Cold, then warm, then warm from another ranking.
            let daemon = Daemon::start(&["--workers", workers]).await;
            let candidates = matmul_candidates(&daemon).await;
            for _ in 0..2 {
                answers.push(rank_top(&daemon, candidates.clone(), top_k).await);
            }
            rank_top(&daemon, candidates.clone(), 2).await;
            answers.push(rank_top(&daemon, candidates, top_k).await);
        }
        // Everything warm.
        answers.push(rank_top(&daemon, candidates.clone(), top_k).await);
        let answers: Vec<_> = answers.into_iter().map(deterministic).collect();
        assert!(answers.iter().all(|a| a == &answers[0]), "top {top_k}");
        let (outcomes, order) = &answers[0];
        let kept = order.ranked.len();
        assert_eq!(order.ranked[..], full.ranked[..kept]);
        let top = (top_k as usize).min(full.ranked.len());
        assert!(kept >= top);
        // Who is left out is worse than the k-th.
        if let Some(next) = full.ranked.get(kept) {
            assert!(next.score > order.ranked[top - 1].score);
        }
        let mut pruned = 0;
        for (outcome, whole) in outcomes.iter().zip(&all) {
            let Some(why) = &outcome.pruned else {
                assert_eq!(outcome.status(), whole.status(), "{}", outcome.key);
                assert_eq!(
                    outcome.score.is_some(),
                    whole.score.is_some()
                        && (outcome.status() == Status::Ok
                            || order.ranked.iter().any(|r| r.index == outcome.index)),
                    "{}",
                    outcome.key
                );
                continue;
            };
            pruned += 1;
            assert_eq!(outcome.status(), Status::Pruned);
            let (score, worst) = (whole.score.unwrap(), order.ranked[top - 1].score);
            assert!(why.bound <= score && worst < score, "{}", outcome.key);
            assert_eq!(why.by_bound, why.bound > worst, "{}", outcome.key);
            assert!(!why.resource.is_empty() && !why.reason.is_empty());
        }
        // The duplicate of one that is left out has no score either.
        assert!(pruned + 1 >= full.ranked.len() - kept);
        assert_eq!(pruned > 0, top_k < 1000);
    }
}

#[tokio::test]
async fn one_more_candidate_is_one_more_simulation() {
    let best = {
        let daemon = Daemon::start(&[]).await;
        let candidates = matmul_candidates(&daemon).await;
        let (_, order) = rank_top(&daemon, candidates, 1).await;
        order.ranked[0].index as usize
    };
    for top_k in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start_in(folder.path(), &["--workers", "2"]).await;
        let mut candidates = matmul_candidates(&daemon).await;
        // What is added is the best one: nothing but its simulation can tell.
        let added = candidates.remove(best);
        rank_top(&daemon, candidates.clone(), top_k).await;
        let simulations = |info: v1::ServerInfoResponse| info.counters.unwrap().simulations;
        let before = simulations(daemon.info().await);
        assert!(before > 0);
        candidates.insert(7, added);
        let (first, _) = rank_top(&daemon, candidates.clone(), top_k).await;
        assert_eq!(simulations(daemon.info().await), before + 1, "top {top_k}");
        let origins = |outcomes: &[v1::CandidateOutcome], origin: v1::Origin| {
            let results = outcomes
                .iter()
                .filter(|o| o.index == 7)
                .flat_map(|o| &o.results);
            results
                .filter(|r| r.envelope.as_ref().unwrap().origin() == origin)
                .count()
        };
        assert_eq!(origins(&first, v1::Origin::Simulated), 1);
        let again = rank_top(&daemon, candidates.clone(), top_k).await;
        assert_eq!(origins(&again.0, v1::Origin::Cached), 1);
        assert_eq!(simulations(daemon.info().await), before + 1, "top {top_k}");
        // The store knows as well, also what was stopped on its way.
        daemon.stop().await;
        let daemon = Daemon::start_in(folder.path(), &["--workers", "2"]).await;
        let restarted = rank_top(&daemon, candidates, top_k).await;
        assert_eq!(deterministic(restarted), deterministic(again));
        assert_eq!(simulations(daemon.info().await), 0, "top {top_k}");
    }
}

#[tokio::test]
async fn what_is_final_is_told_before_the_ranking_ends() {
    let daemon = Daemon::start(&["--workers", "1"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let failed = v1::Candidate {
        key: "failed".into(),
        launches: vec![],
        pre_failure: Some(v1::Problem::default()),
    };
    // Its bound is beyond what the quick one takes.
    let endless = candidate("endless", vec![slow_request(&slow, 1).launch.unwrap()]);
    let quick = candidate("quick", vec![launch(&slow, &[1])]);
    // Equal in all but the parameter that nothing uses; not told apart by bounds.
    let mut budget = launch(&slow, &[1]);
    budget.options = Some(v1::RunOptions {
        cycle_budget: Some(5),
        ..Default::default()
    });
    let question = v1::RankRequest {
        machine: Some(machine()),
        candidates: vec![endless, failed, quick, candidate("over", vec![budget])],
        top_k: 1,
    };
    let mut parts = daemon
        .simulation()
        .rank(question)
        .await
        .unwrap()
        .into_inner();
    let mut statuses = std::collections::BTreeMap::new();
    let mut last = None;
    while let Some(part) = parts.message().await.unwrap() {
        match part.part.unwrap() {
            v1::rank_response::Part::Outcome(o) => {
                assert_eq!(statuses.is_empty(), o.key == "failed", "it is told first");
                statuses.insert(o.key.clone(), o.status());
            }
            v1::rank_response::Part::Order(o) => last = Some(o),
        }
    }
    let want = [
        ("endless", Status::Pruned),
        ("failed", Status::Failed),
        ("over", Status::OverBudget),
        ("quick", Status::Ok),
    ];
    assert_eq!(statuses, want.map(|(k, s)| (k.to_owned(), s)).into());
    assert_eq!(last.unwrap().ranked.len(), 1);
    // The endless one never ran: its bound was enough.
    assert!(daemon.info().await.counters.unwrap().simulations <= 2);
}

#[tokio::test]
async fn a_server_that_ends_says_which_candidates_it_gave_up() {
    let mut daemon = Daemon::start(&["--workers", "1", "--drain-seconds", "0.2"]).await;
    let slow = daemon.put("slow.tile", SLOW.as_bytes()).await.unwrap();
    let failed = v1::Candidate {
        key: "failed".into(),
        launches: vec![],
        pre_failure: Some(v1::Problem::default()),
    };
    let endless = |salt| slow_request(&slow, salt).launch.unwrap();
    let question = v1::RankRequest {
        machine: Some(machine()),
        candidates: vec![
            candidate("running", vec![endless(1)]),
            failed,
            candidate("waiting", vec![endless(2)]),
        ],
        top_k: 0,
    };
    let mut simulation = daemon.simulation();
    let mut parts = simulation.rank(question).await.unwrap().into_inner();
    daemon.wait_for("it runs", |i| i.running == 1).await;
    daemon.signal(Signal::TERM);
    let mut statuses = std::collections::BTreeMap::new();
    let error = loop {
        match parts.message().await {
            Ok(Some(part)) => match part.part.unwrap() {
                v1::rank_response::Part::Outcome(o) => {
                    let before = statuses.insert(o.key.clone(), o.status());
                    assert_eq!(before, None, "each once");
                }
                v1::rank_response::Part::Order(_) => panic!("an order of what never ended"),
            },
            Ok(None) => panic!("the stream ended well"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    let want = [
        ("failed", Status::Failed),
        ("running", Status::Cancelled),
        ("waiting", Status::Cancelled),
    ];
    assert_eq!(statuses, want.map(|(k, s)| (k.to_owned(), s)).into());
    daemon.ended().await;
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
