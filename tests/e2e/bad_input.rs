//! Bad input of every kind, and the exact error it gets: `../golden/bad_input.txt`.
//!
//! After each case the server must still answer a good request. Run with `TILESIM_UPDATE=1` to
//! rewrite the table, then review its diff.

use std::fmt::Write as _;

use tilesim_proto::{TENANT_HEADER, v1};
use tonic::{Request, Status};
use tonic_types::StatusExt;

use crate::daemon::{Daemon, launch, machine, preset, repository, request, sample, upload};

const TABLE: &str = "tests/golden/bad_input.txt";

/// The trace that cases change.
const BASE: &str = r#"tilesim trace 1
kernel "base"
axes 2
param K
param D = 4
tensor A: 32 bit in [64, 64]
tensor B: 32 bit out [64, 64]
buffer a 4096
tile t cycles 10
body {
  for k in 0..K {
    load A[p0 * 1024 / D + p1 * 16 + k] dims [16: 64, 16: 1] writes [a]
    compute t vector reads [a] writes [a]
  }
  store B[p0 * 1024 + p1 * 16] dims [16: 64, 16: 1] reads [a]
}
"#;

struct Table {
    daemon: Daemon,
    base: String,
    text: String,
    cases: usize,
}

impl Table {
    async fn note<T: std::fmt::Debug>(&mut self, name: &str, outcome: Result<T, Status>) {
        self.cases += 1;
        let status = match outcome {
            Err(status) => status,
            Ok(answer) => panic!("{name}: {answer:?}"),
        };
        let details = status.get_error_details();
        let (code, path, hint) = match details.error_info() {
            None => ("", "", ""),
            Some(info) => {
                let field = |name: &str| info.metadata.get(name).map_or("", String::as_str);
                (info.reason.as_str(), field("path"), field("hint"))
            }
        };
        let message = status.message().replace('\n', " | ");
        let status = format!("{:?}", status.code());
        writeln!(self.text, "{name}").unwrap();
        for (part, text) in [
            ("status", status.as_str()),
            ("code", code),
            ("path", path),
            ("message", &message),
            ("hint", hint),
        ] {
            writeln!(self.text, "{}", format!("  {part:7}  {text}").trim_end()).unwrap();
        }
        self.text.push('\n');
        // Whatever came in, the server answers the next request.
        let answer = self.daemon.simulate(self.good()).await;
        assert!(answer.is_ok(), "after {name}: {answer:?}");
    }

    fn good(&self) -> v1::SimulateRequest {
        let mut good = request(&self.base, &[4, 4]);
        good.launch.as_mut().unwrap().params.insert("K".into(), 2);
        good
    }

    async fn trace(&mut self, name: &str, file: &str, bytes: &[u8]) {
        let outcome = self.daemon.put(file, bytes).await;
        self.note(name, outcome).await;
    }

    /// A change of the base text that makes it wrong.
    async fn text(&mut self, name: &str, from: &str, to: &str) {
        assert!(BASE.contains(from), "{name}");
        self.trace(name, "", BASE.replacen(from, to, 1).as_bytes())
            .await;
    }

    async fn parts(&mut self, name: &str, parts: Vec<v1::UploadTraceRequest>) {
        let outcome = self
            .daemon
            .traces()
            .upload(Request::new(tokio_stream::iter(parts)))
            .await;
        self.note(name, outcome).await;
    }

    /// A change of the good request that makes it wrong.
    async fn request(&mut self, name: &str, change: impl FnOnce(&mut v1::SimulateRequest)) {
        let mut request = self.good();
        change(&mut request);
        let outcome = self.daemon.simulate(request).await;
        self.note(name, outcome).await;
    }

    /// A change of the good launch that makes it wrong.
    async fn launch(&mut self, name: &str, change: impl FnOnce(&mut v1::Launch)) {
        self.request(name, |request| change(request.launch.as_mut().unwrap()))
            .await;
    }

    /// A stored trace that cannot run on a machine.
    async fn run(&mut self, name: &str, trace: &str, grid: &[u64], on: v1::MachineRef) {
        let launch = launch(trace, grid);
        let request = v1::SimulateRequest {
            machine: Some(on),
            launch: Some(launch),
        };
        let outcome = self.daemon.simulate(request).await;
        self.note(name, outcome).await;
    }

    async fn machine(&mut self, name: &str, document: &str) {
        let document = document.to_owned();
        let put = v1::PutMachineRequest {
            name: String::new(),
            document,
        };
        let outcome = self.daemon.machines().put(put).await;
        self.note(name, outcome).await;
    }
}

#[tokio::test]
async fn every_mistake_gets_its_exact_error() {
    let flags = [
        "--max-message-bytes=65536",
        "--max-trace-bytes=1048576",
        "--max-work-items=1000000",
        "--max-requests=10000000",
        "--max-candidates=8",
    ];
    let daemon = Daemon::start(&flags).await;
    let base = daemon.put("base.tile", BASE.as_bytes()).await.unwrap();
    let mut table = Table {
        daemon,
        base,
        text: String::new(),
        cases: 0,
    };
    traces(&mut table).await;
    uploads(&mut table).await;
    launches(&mut table).await;
    semaphores_and_scratchpad(&mut table).await;
    machines(&mut table).await;
    requests(&mut table).await;
    assert!(table.cases >= 50, "{}", table.cases);

    let path = repository(TABLE);
    if std::env::var_os("TILESIM_UPDATE").is_some() {
        std::fs::write(&path, &table.text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let blocks = |text: &str| text.split("\n\n").map(str::to_owned).collect::<Vec<_>>();
    for (got, expected) in blocks(&table.text).iter().zip(blocks(&expected)) {
        assert_eq!(got, &expected);
    }
    assert_eq!(
        table.text.len(),
        expected.len(),
        "the table has another length"
    );
}

async fn traces(table: &mut Table) {
    table.trace("trace: empty", "", b"").await;
    table
        .trace(
            "trace: bytes that are no text",
            "",
            &[0xff, 0xfe, 0, 1, 2, 3],
        )
        .await;
    table
        .trace("trace: prose", "readme.md", b"# this is not a trace\n")
        .await;
    table
        .text("trace: a later version", "trace 1", "trace 99")
        .await;
    table
        .text("trace: syntax", "for k in 0..K {", "for k in 0.. {")
        .await;
    table.text("trace: no axes", "axes 2", "axes 0").await;
    table.text("trace: four axes", "axes 2", "axes 4").await;
    table
        .text(
            "trace: unknown tile",
            "compute t vector",
            "compute u vector",
        )
        .await;
    table
        .text("trace: unknown buffer", "writes [a]", "writes [z]")
        .await;
    table
        .text("trace: unknown tensor", "load A", "load Z")
        .await;
    table
        .text(
            "trace: unknown name in an expression",
            "+ p1 * 16 + k",
            "+ p1 * 16 + kk",
        )
        .await;
    table
        .text(
            "trace: program id of an axis that is not there",
            "p1 * 16 + k",
            "p2 * 16 + k",
        )
        .await;
    table
        .text(
            "trace: loop variable outside its loop",
            "store B[p0",
            "store B[k + p0",
        )
        .await;
    table
        .text(
            "trace: name given twice",
            "buffer a 4096",
            "buffer a 4096\nbuffer a 8",
        )
        .await;
    table
        .text("trace: element of no bits", "A: 32 bit", "A: 0 bit")
        .await;
    table
        .text("trace: 2^53 cycles", "cycles 10", "cycles 9007199254740992")
        .await;
    table
        .text(
            "trace: literal beyond 64 bits",
            "p1 * 16 + k",
            "p1 * 9223372036854775808",
        )
        .await;
    let nested = format!("{}p0{}", "(".repeat(500), ")".repeat(500));
    table
        .text("trace: deep expression", "p1 * 16 + k", &nested)
        .await;
    let loops = "for x in 0..1 {\n".repeat(100) + &"}\n".repeat(100);
    table
        .text("trace: deep loops", "  store", &(loops + "store"))
        .await;
    table
        .trace("trace: JSON that is none", "x.json", b"{ \"axes\": 1, ")
        .await;
    table
        .trace(
            "trace: JSON without what it needs",
            "x.json",
            b"{ \"axes\": 1 }",
        )
        .await;
    let json = std::fs::read_to_string(sample("vecadd_sync.json")).unwrap();
    let unknown = json.replacen("\"axes\"", "\"axxes\": 1, \"axes\"", 1);
    table
        .trace(
            "trace: JSON with an unknown key",
            "x.json",
            unknown.as_bytes(),
        )
        .await;

    let question = v1::GetTraceRequest {
        digest: table.base.clone(),
        encoding: 1,
    };
    let mut answer = table
        .daemon
        .traces()
        .get(question)
        .await
        .unwrap()
        .into_inner();
    let container = answer.message().await.unwrap().unwrap().data;
    table
        .trace(
            "trace: container cut short",
            "",
            &container[..container.len() / 2],
        )
        .await;
    let mut flipped = container.clone();
    *flipped.last_mut().unwrap() ^= 1;
    table
        .trace("trace: container with a flipped bit", "", &flipped)
        .await;
    table
        .trace(
            "trace: container of nothing but its head",
            "",
            &container[..8],
        )
        .await;
}

async fn uploads(table: &mut Table) {
    use v1::upload_trace_request::Part;
    let good = upload("x", BASE.as_bytes());
    let header = |size_bytes| v1::UploadTraceRequest {
        part: Some(Part::Header(v1::UploadTraceHeader {
            name: "x".into(),
            size_bytes,
        })),
    };
    table.parts("upload: nothing", vec![]).await;
    table.parts("upload: no header", good[1..].to_vec()).await;
    let twice = vec![good[0].clone(), good[0].clone()];
    table.parts("upload: two headers", twice).await;
    table
        .parts(
            "upload: more data than announced",
            [&[header(5)], &good[1..]].concat(),
        )
        .await;
    table
        .parts(
            "upload: less data than announced",
            [&[header(5000)], &good[1..]].concat(),
        )
        .await;
    table
        .parts("upload: over the limit", vec![header(1 << 40)])
        .await;
    table
        .parts(
            "upload: a name over the limit",
            upload(&"n".repeat(2000), b"x"),
        )
        .await;
    let part = v1::UploadTraceRequest {
        part: Some(Part::Data(vec![0; 100_000])),
    };
    table
        .parts(
            "upload: a part over the message limit",
            vec![header(200_000), part],
        )
        .await;
}

async fn launches(table: &mut Table) {
    let max = i64::MAX;
    table
        .launch("launch: too few axes", |l| l.grid = vec![4])
        .await;
    table
        .launch("launch: too many axes", |l| l.grid = vec![4, 4, 4])
        .await;
    table.launch("launch: no grid", |l| l.grid.clear()).await;
    table
        .launch("launch: missing parameter", |l| l.params.clear())
        .await;
    table
        .launch("launch: unknown parameter", |l| {
            _ = l.params.insert("KK".into(), 1)
        })
        .await;
    table
        .launch("launch: grid product beyond 64 bits", |l| {
            l.grid = vec![1 << 40, 1 << 40]
        })
        .await;
    table
        .launch("launch: grid extent beyond 63 bits", |l| {
            l.grid = vec![u64::MAX, 1]
        })
        .await;
    table
        .launch("launch: more work-items than the server takes", |l| {
            l.grid = vec![1001, 1000]
        })
        .await;
    table
        .launch("launch: more work-items than it allows itself", |l| {
            l.options = Some(v1::RunOptions {
                max_work_items: Some(15),
                ..Default::default()
            });
        })
        .await;
    table
        .launch("launch: a limit above the server's", |l| {
            l.options = Some(v1::RunOptions {
                max_work_items: Some(u64::MAX),
                ..Default::default()
            });
        })
        .await;
    table
        .launch("launch: more requests than it allows itself", |l| {
            l.options = Some(v1::RunOptions {
                max_requests: Some(100),
                ..Default::default()
            });
        })
        .await;
    table
        .launch("launch: over its cycle budget", |l| {
            l.options = Some(v1::RunOptions {
                cycle_budget: Some(7),
                ..Default::default()
            });
        })
        .await;
    let extents = |e: &[i64]| v1::Extents {
        extents: e.to_vec(),
    };
    table
        .launch("launch: extents of an unknown tensor", |l| {
            _ = l.extents.insert("Z".into(), extents(&[1]))
        })
        .await;
    table
        .launch("launch: extents of another rank", |l| {
            _ = l.extents.insert("A".into(), extents(&[1]))
        })
        .await;
    table
        .launch("launch: negative extent", |l| {
            _ = l.extents.insert("A".into(), extents(&[-1, 4]))
        })
        .await;
    table
        .launch("launch: extents that are too large", |l| {
            _ = l.extents.insert("A".into(), extents(&[max, max]))
        })
        .await;
    table
        .launch("launch: some tensors placed", |l| {
            _ = l.placement.insert("A".into(), 0)
        })
        .await;
    table
        .launch("launch: overlapping tensors", |l| {
            l.placement = [("A".into(), 0), ("B".into(), 100)].into();
        })
        .await;
    table
        .launch("launch: a tensor beyond the address space", |l| {
            l.placement = [("A".into(), 0), ("B".into(), u64::MAX - 10)].into();
        })
        .await;
    table
        .launch("launch: placement of an unknown tensor", |l| {
            l.placement = [
                ("A".into(), 0),
                ("B".into(), 1 << 20),
                ("C".into(), 1 << 30),
            ]
            .into();
        })
        .await;
    table
        .launch("launch: transfer outside its tensor", |l| {
            l.grid = vec![5, 4]
        })
        .await;
    table
        .launch("launch: negative offset", |l| {
            _ = l.params.insert("D".into(), -1)
        })
        .await;
    table
        .launch("launch: division by zero", |l| {
            _ = l.params.insert("D".into(), 0)
        })
        .await;
    table
        .launch("launch: endless loop", |l| {
            _ = l.params.insert("K".into(), max)
        })
        .await;
    table
        .launch("launch: trace digest that is none", |l| {
            l.trace_digest = "abc".into()
        })
        .await;
    table
        .launch("launch: unknown trace", |l| l.trace_digest = "0".repeat(64))
        .await;

    let mut broken = BASE.replace("p1 * 16 + k", "p1 * 16 + (k + D) * D * 4611686018427387904");
    let trace = table.daemon.put("", broken.as_bytes()).await.unwrap();
    table
        .launch("launch: offset overflow", |l| l.trace_digest = trace)
        .await;
    broken = BASE.replace("0..K {", "0..K step D {");
    let trace = table.daemon.put("", broken.as_bytes()).await.unwrap();
    table
        .launch("launch: a step of zero", |l| {
            l.trace_digest = trace;
            l.params.insert("D".into(), 0);
        })
        .await;
    broken = BASE.replace("[16: 64, 16: 1] reads", "[16 - D: 64, 16: 1] reads");
    let trace = table.daemon.put("", broken.as_bytes()).await.unwrap();
    table
        .launch("launch: negative extent of a transfer", |l| {
            l.trace_digest = trace;
            l.params.insert("D".into(), 17);
        })
        .await;
    broken = BASE.replace(
        "[16: 64, 16: 1] reads",
        "[16: 64 valid 12 + D, 16: 1] reads",
    );
    let trace = table.daemon.put("", broken.as_bytes()).await.unwrap();
    table
        .launch("launch: a mask larger than what it masks", |l| {
            l.trace_digest = trace;
            l.params.insert("D".into(), 5);
        })
        .await;
}

async fn semaphores_and_scratchpad(table: &mut Table) {
    for (name, file, grid) in [
        (
            "run: an asynchronous load nobody waits for",
            "refuse_no_wait.json",
            1,
        ),
        (
            "run: a wait for the wrong number of elements",
            "refuse_wait_count.json",
            1,
        ),
        (
            "run: a wait nobody signals",
            "refuse_wait_unsignalled.json",
            1,
        ),
    ] {
        let trace = table.daemon.put_sample(file).await;
        table.run(name, &trace, &[grid], machine()).await;
    }
    let gemm = table.daemon.put_sample("gemm_256.json").await;
    let small = preset("tpuv3_simple_dram", &[("cores.scratchpad_bytes", "32768")]);
    table
        .run("run: a buffer over the scratchpad", &gemm, &[1, 1], small)
        .await;
    // A random program that the reference locks up on, on the machine it does so on.
    let programs = std::fs::read_to_string(sample("random/programs.jsonl")).unwrap();
    let lock = programs.lines().next().unwrap();
    let trace = table.daemon.put("", lock.as_bytes()).await.unwrap();
    let tight = repository("tests/golden/pytorchsim/configs/tpuv3_simple_dram_r2.yml");
    let document = v1::machine_ref::Source::Document(std::fs::read_to_string(tight).unwrap());
    let tight = v1::MachineRef {
        source: Some(document),
        overrides: vec![],
    };
    table.run("run: deadlock", &trace, &[7], tight).await;
    let unknown = BASE
        .replace("param K\n", "param K = 1\n")
        .replace("cycles 10", "cycles unknown");
    let trace = table.daemon.put("", unknown.as_bytes()).await.unwrap();
    table
        .run("run: a tile without cycles", &trace, &[1, 1], machine())
        .await;
    let measured = BASE
        .replace("param K\n", "param K = 1\n")
        .replace("kernel \"base\"", "kernel \"base\"\nmeasured lanes 7");
    match table.daemon.put("", measured.as_bytes()).await {
        Ok(trace) => {
            table
                .run(
                    "run: costs measured on another machine",
                    &trace,
                    &[1, 1],
                    machine(),
                )
                .await;
        }
        Err(status) => panic!("{status:?}"),
    }
}

async fn machines(table: &mut Table) {
    let good = "clocks: {core_mhz: 940}\ndram: {channels: 4, latency_cycles: 60}";
    table.machine("machine: empty", "").await;
    table.machine("machine: not YAML", "clocks: [1, 2").await;
    table.machine("machine: a list", "[1, 2]").await;
    table
        .machine("machine: unknown key", &good.replace("channels", "chanels"))
        .await;
    table
        .machine("machine: missing key", "dram: {channels: 4}")
        .await;
    table
        .machine("machine: wrong type", &good.replace(": 4,", ": four,"))
        .await;
    table
        .machine("machine: out of range", &good.replace(": 4,", ": 0,"))
        .await;
    table
        .machine(
            "machine: a key twice",
            &format!("{good}\nclocks: {{core_mhz: 1}}"),
        )
        .await;
    let laughs = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]";
    table.machine("machine: anchors", laughs).await;
    table
        .machine("machine: deep", &("[".repeat(1000) + &"]".repeat(1000)))
        .await;
    let on = |machine| move |request: &mut v1::SimulateRequest| request.machine = Some(machine);
    table
        .request("machine: unknown preset", on(preset("tpuv33", &[])))
        .await;
    let change = |path, value| preset("tpuv3_simple_dram", &[(path, value)]);
    table
        .request(
            "machine: override of an unknown path",
            on(change("dram.chanels", "8")),
        )
        .await;
    table
        .request(
            "machine: override of the wrong type",
            on(change("dram.channels", "x")),
        )
        .await;
    table
        .request(
            "machine: override that is no YAML",
            on(change("dram.channels", "[1")),
        )
        .await;
    let digest = |digest: &str| v1::MachineRef {
        source: Some(v1::machine_ref::Source::Digest(digest.to_owned())),
        overrides: vec![],
    };
    table
        .request("machine: unknown digest", on(digest(&"1".repeat(64))))
        .await;
    table
        .request("machine: digest that is none", on(digest("xyz")))
        .await;
    table
        .request("machine: no source", on(v1::MachineRef::default()))
        .await;
    let many = vec![("dram.channels", "8"); 300];
    table
        .request("machine: too many overrides", on(preset("tpuv3", &many)))
        .await;
}

async fn requests(table: &mut Table) {
    table
        .request("request: no machine", |r| r.machine = None)
        .await;
    table
        .request("request: no launch", |r| r.launch = None)
        .await;
    let mut question = Request::new(table.good());
    question
        .metadata_mut()
        .insert(TENANT_HEADER, "../other".parse().unwrap());
    let outcome = table.daemon.simulation().simulate(question).await;
    table
        .note("request: a tenant that is no name", outcome)
        .await;
    let document = "#".repeat(100_000);
    let put = v1::PutMachineRequest {
        name: String::new(),
        document,
    };
    let outcome = table.daemon.machines().put(put).await;
    table
        .note("request: a message over the limit", outcome)
        .await;

    let rank = |candidates| v1::RankRequest {
        machine: Some(machine()),
        candidates,
        top_k: 0,
    };
    let outcome = table.daemon.simulation().rank(rank(vec![])).await;
    table.note("rank: no candidates", outcome).await;
    let outcome = table
        .daemon
        .simulation()
        .rank(rank(vec![Default::default(); 9]))
        .await;
    table.note("rank: too many candidates", outcome).await;

    let list = v1::ListTracesRequest {
        page_size: 5000,
        page_token: String::new(),
    };
    let outcome = table.daemon.traces().list(list).await;
    table.note("list: a page over the limit", outcome).await;
    let list = v1::ListTracesRequest {
        page_size: 0,
        page_token: "next".into(),
    };
    let outcome = table.daemon.traces().list(list).await;
    table.note("list: a token that is none", outcome).await;
    let find = v1::FindMissingTracesRequest {
        digests: vec!["0".repeat(64), "1".into()],
    };
    let outcome = table.daemon.traces().find_missing(find).await;
    table
        .note("find missing: a digest that is none", outcome)
        .await;
    let digest = "0".repeat(64);
    let outcome = table
        .daemon
        .traces()
        .delete(v1::DeleteTraceRequest {
            digest: digest.clone(),
        })
        .await;
    table.note("delete: unknown trace", outcome).await;
    let get = v1::GetTraceRequest {
        digest: table.base.clone(),
        encoding: 9,
    };
    let outcome = table.daemon.traces().get(get).await;
    table.note("get: unknown encoding", outcome).await;

    let outcome = table
        .daemon
        .simulation()
        .submit_job(v1::SubmitJobRequest::default())
        .await;
    table.note("jobs: submit", outcome).await;
    let outcome = table
        .daemon
        .simulation()
        .watch_job(v1::WatchJobRequest::default())
        .await;
    table.note("jobs: watch", outcome).await;
    let outcome = table
        .daemon
        .simulation()
        .cancel_job(v1::CancelJobRequest::default())
        .await;
    table.note("jobs: cancel", outcome).await;
    let outcome = table
        .daemon
        .simulation()
        .list_jobs(v1::ListJobsRequest::default())
        .await;
    table.note("jobs: list", outcome).await;
}
