//! Kernel folders: their tables, what is refused, and folders made to harm.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Instant;

use tilesim_traces::import::pytorchsim::{
    AxisExtent, CycleSource, KernelFolder, Options, import, import_source, parse_cycle_table,
    parse_gem5_stats, parse_units,
};
use tilesim_traces::model::{Role, Trace};
use tilesim_traces::{ErrorCode, ValidTrace};

const PRODUCER: &str = include_str!("../../tests/golden/producers/gemm_256.compiler.cpp");

fn folder(files: &[(&str, &str)]) -> KernelFolder {
    let mut f = KernelFolder::new();
    for (name, text) in files {
        f.add(*name, *text).unwrap();
    }
    f
}

fn refuse(files: &[(&str, &str)]) -> tilesim_traces::TraceError {
    import(&folder(files), &Options::default()).expect_err("must be refused")
}

/// A producer around a work-item's statements.
fn item(body: &str) -> String {
    format!(
        "#include <cstdint>\n#include \"togsim_runtime.h\"\n\
         extern const int64_t togsim_spad_buffer_bytes[2] = {{64, 64}};\n\
         static const int64_t D[1] = {{4}}, B[1] = {{0}};\n\
         static void f(EmitCtx* ctx, int64_t* iv, int32_t n) {{\n{body}\n}}\n\
         extern \"C\" void togsim_kernel(EmitCtx* ctx, int64_t* s, int32_t n) {{\n\
         for (int64_t i = 0; i < s[0]; i++) {{ int64_t iv[1] = {{i}}; togsim_dispatch(ctx, f, iv, 1, 0); }} }}\n"
    )
}

fn refuse_item(body: &str) -> tilesim_traces::TraceError {
    let start = Instant::now();
    let e = match import_source(item(body).as_bytes(), &Options::default()) {
        Ok(i) => panic!("accepted: {:?}", i.trace.body),
        Err(e) => e,
    };
    assert!(
        start.elapsed().as_secs() < 20,
        "took {:?}: {e}",
        start.elapsed()
    );
    e
}

#[test]
fn a_whole_folder() {
    let f = folder(&[
        ("trace.cpp", PRODUCER),
        (
            "trace_cycles.tsv",
            "40\t0\n91\t3\n# a comment\n396\t0\n# origins: {'x'}\n",
        ),
        (
            "trace_tensor_shapes.txt",
            "256 256 4\n256 256 4\n256 256 4\n",
        ),
        ("trace_tensors.txt", "262144\n262144\n262144\n"),
        ("trace_shape.txt", "2\n2\n"),
        ("trace_axes.txt", "2\n"),
        (
            "units.tsv",
            "0\tIssue\tmicro-ops\t12\t122\n2\tSystolic\trows\t1\t1024\n2\tVpu\tcycles\t1\t201\n",
        ),
        (
            "kernel.json",
            r#"{"kernel_name": "mm", "args": [{"shape": [256, 256], "dtype": "float32", "name": "a"}]}"#,
        ),
    ]);
    let i = import(&f, &Options::default()).unwrap();
    assert_eq!(i.report.abi, 15);
    assert_eq!(i.report.shape, Some(vec![2, 2]));
    assert_eq!(i.report.grid, [AxisExtent::Shape(0), AxisExtent::Shape(1)]);
    assert_eq!(i.report.cycles, CycleSource::Table);
    let t: &Trace = &i.trace;
    assert_eq!(t.header.kernel, "mm");
    assert_eq!(
        t.tiles
            .iter()
            .map(|t| (t.cycles, t.overlap))
            .collect::<Vec<_>>(),
        [(Some(40), 0), (Some(91), 3), (Some(396), 0)]
    );
    assert_eq!(t.tiles[2].admissions.len(), 2);
    assert_eq!(
        t.tensors.iter().map(|t| t.role).collect::<Vec<_>>(),
        [Role::In, Role::In, Role::Out]
    );
    assert_eq!(t.tensors[0].name, "a");
    assert_eq!(
        t.buffers.iter().map(|b| b.bytes).collect::<Vec<_>>(),
        [65536, 65536, 65536, 0]
    );
    ValidTrace::try_from(i.trace).unwrap();
}

const STATS: &str = "---------- Begin Simulation Statistics ----------\nsystem.clk_domain.clock 1000 # x\nsystem.cpu.numCycles 40 # c\n---------- End Simulation Statistics   ----------\n\n---------- Begin Simulation Statistics ----------\nsystem.cpu.numCycles 91\n---------- End Simulation Statistics   ----------\n---------- Begin Simulation Statistics ----------\nsystem.cpu.numCycles 396\n---------- End Simulation Statistics   ----------\n---------- Begin Simulation Statistics ----------\nsystem.cpu.numCycles 7\n---------- End Simulation Statistics   ----------\n";

#[test]
fn gem5_statistics_in_place_of_the_table() {
    assert_eq!(
        parse_gem5_stats(STATS.as_bytes(), "s").unwrap(),
        [40, 91, 396]
    );
    let types = r#"{"overlap_offset": [null, 90, 400], "parallel_axes": ["x", "y"]}"#;
    let f = folder(&[
        ("trace.cpp", PRODUCER),
        ("m5out/stats.txt", STATS),
        ("tile_types.json", types),
    ]);
    let i = import(&f, &Options::default()).unwrap();
    assert_eq!(i.report.cycles, CycleSource::Gem5);
    let got: Vec<_> = i
        .trace
        .tiles
        .iter()
        .map(|t| (t.cycles.unwrap(), t.overlap))
        .collect();
    assert_eq!(got, [(40, 0), (91, 1), (396, 0)]);
    // Counts must match.
    let types = r#"{"overlap_offset": [null, 90]}"#;
    let e = refuse(&[
        ("trace.cpp", PRODUCER),
        ("m5out/stats.txt", STATS),
        ("tile_types.json", types),
    ]);
    assert_eq!(e.code, ErrorCode::BadValue);
    let short = STATS.replacen("system.cpu.numCycles 396", "x 1", 1);
    assert_eq!(
        parse_gem5_stats(short.as_bytes(), "s").unwrap_err().code,
        ErrorCode::MissingKey
    );
    let cut = &STATS[..STATS.len() - 60];
    assert!(parse_gem5_stats(cut.as_bytes(), "s").is_err());
    for bad in [
        "",
        "hello",
        "---------- End Simulation",
        "system.cpu.numCycles -4\n",
        "system.cpu.numCycles 1e9\n",
    ] {
        assert!(parse_gem5_stats(bad.as_bytes(), "s").is_err(), "{bad}");
    }
}

#[test]
fn tables_say_where_they_are_wrong() {
    assert_eq!(
        parse_cycle_table(b"1\t2\n3 4\n5\n", "c").unwrap(),
        [(1, 2), (3, 4), (5, 0)]
    );
    for bad in [
        "x\t0\n",
        "1\t2\t3\n",
        "-1\t0\n",
        "9007199254740992\t0\n",
        "99999999999999999999\t0\n",
    ] {
        let e = parse_cycle_table(bad.as_bytes(), "c").unwrap_err();
        assert_eq!(e.path, "c");
        assert_eq!(e.at.unwrap().line, 1);
    }
    assert_eq!(parse_units(b"0\tA\tb\t1\t2\n", "u").unwrap().len(), 1);
    for bad in [
        "0\tA\tb\t1\n",
        "0\tA\tb\t0\t1\n",
        "0\tA\tb\tnan\t1\n",
        "0\tA\tb\t1\t-1\n",
    ] {
        assert!(parse_units(bad.as_bytes(), "u").is_err(), "{bad}");
    }
    assert!(
        parse_cycle_table(b"1\t\xff\n", "c")
            .unwrap_err()
            .to_string()
            .contains("UTF-8")
    );
    let many = "1\t0\n".repeat(70_000);
    assert_eq!(
        parse_cycle_table(many.as_bytes(), "c").unwrap_err().code,
        ErrorCode::TooLarge
    );
}

#[test]
fn files_that_contradict_the_producer() {
    let p = ("trace.cpp", PRODUCER);
    assert_eq!(
        refuse(&[p, ("trace_cycles.tsv", "1\t0\n2\t0\n")]).code,
        ErrorCode::UnknownTile
    );
    assert_eq!(
        refuse(&[p, ("trace_tensor_shapes.txt", "4 4 4\n4 4 4\n")]).code,
        ErrorCode::UnknownTensor
    );
    assert_eq!(
        refuse(&[p, ("trace_axes.txt", "2\n"), ("trace_shape.txt", "1\n")]).code,
        ErrorCode::AxisCount
    );
    assert_eq!(refuse(&[("kernel.json", "{")]).code, ErrorCode::Syntax);
    assert_eq!(refuse(&[]).code, ErrorCode::MissingKey);
    assert_eq!(
        refuse(&[("a.cpp", ""), ("b.cpp", "")]).code,
        ErrorCode::BadValue
    );
    assert_eq!(
        refuse(&[("a.cpp", "int main() {}")]).code,
        ErrorCode::MissingKey
    );
    for abi in [11, 12, 13, 16, 10] {
        assert!(
            import_source(
                PRODUCER.as_bytes(),
                &Options {
                    abi: Some(abi),
                    ..Options::default()
                }
            )
            .is_err(),
            "{abi}"
        );
    }
    let named = folder(&[
        ("x.cpp", "#error"),
        ("k.cpp", PRODUCER),
        ("kernel.json", r#"{"artifacts": {"trace": "out/k.cpp"}}"#),
    ]);
    assert_eq!(
        import(&named, &Options::default()).unwrap().report.source,
        "k.cpp"
    );
}

#[test]
fn constructs_outside_the_subset_are_named_with_their_place() {
    for (body, construct) in [
        ("double x = 1;", "floating point"),
        ("int64_t x = 1.5;", "floating-point number"),
        ("goto end;", "goto"),
        ("asm(\"nop\");", "asm"),
        ("const char* s = \"x\";", "a string"),
        ("int64_t* p = new int64_t[4];", "`new`"),
        ("system(n);", "unknown name system"),
        ("std::printf(n);", "std::printf"),
        (
            "uint64_t a = reinterpret_cast<uint64_t>(ctx);",
            "reinterpret_cast",
        ),
        ("uint64_t a = (uint64_t)&n;", "used as an integer"),
        (
            "for (int64_t k = 1; k < iv[0]; k *= 2) togsim_compute(ctx, 0, 0, 0, nullptr, B, 1, B, 1);",
            "step evenly",
        ),
        (
            "for (int64_t k = 0; k < 9; k++) { if (k == iv[0]) break; togsim_compute(ctx, 0, 0, 0, nullptr, B, 1, B, 1); }",
            "under a condition",
        ),
        ("static int64_t count = 0; count++;", "static variable"),
        (
            "int64_t b[1] = {iv[0]}; togsim_compute(ctx, 0, 0, 0, nullptr, b, 1, B, 1);",
            "a buffer",
        ),
        ("togsim_wait(ctx, 0);", "togsim_wait"),
        (
            "togsim_compute(ctx, 0, 9, 0, nullptr, B, 1, B, 1);",
            "compute type 9",
        ),
        (
            "togsim_dma(ctx, 2, 0, 0, 1, D, D, 32, 0, 0, nullptr, 0, B, 1, 0);",
            "direction 2",
        ),
        (
            "togsim_dma(ctx, 0, 0, 0, 1, D, D, 32);",
            "no known trace ABI",
        ),
        ("int64_t x = D[4];", "element 4 of an array of 1"),
        ("int64_t x = iv[1];", "element 1 of an array of 1"),
        ("int64_t x; int64_t y = x + 1;", "never set"),
        ("int64_t x = n / 0;", "division by zero"),
        ("thread_local int x = 0;", "thread_local"),
        (
            "const int64_t b[1] = {-1}; togsim_compute(ctx, 0, 0, 0, nullptr, b, 1, B, 1);",
            "buffer -1",
        ),
        (
            "const int64_t b[1] = {1}; togsim_dma(ctx, 0, 0, 0, 1, D, D, -8, 0, 0, nullptr, 0, b, 1, 0);",
            "elements of -8 bits",
        ),
        (
            "togsim_compute(ctx, (uint64_t)-1, 0, 0, nullptr, B, 1, B, 1);",
            "compute tile",
        ),
        (
            "const int64_t b[1] = {5}; togsim_dma(ctx, 0, 0, 0, 1, D, D, 8, 0, 0, nullptr, 0, b, 1, 0);",
            "buffer 5 is moved",
        ),
        ("try { } catch (...) { }", "`try`"),
    ] {
        let e = refuse_item(body);
        assert!(
            e.to_string().contains(construct),
            "{body}\n  gave: {e}\n  not:  {construct}"
        );
        let at = e.at.unwrap_or_else(|| panic!("{body}: no place"));
        assert_eq!(e.path, "trace.cpp");
        assert_eq!(at.line, 6, "{body}: {e}");
    }
}

#[test]
fn sources_made_to_harm_end_soon() {
    let deep = |a: &str, b: &str, n: usize| format!("{}0{}", a.repeat(n), b.repeat(n));
    let many = |s: &str, n: usize| s.repeat(n);
    let dma = "togsim_compute(ctx, 0, 0, 0, nullptr, B, 1, B, 1);";
    let bodies: Vec<String> = vec![
        format!("int64_t x = {};", deep("(", ")", 100_000)),
        format!("int64_t x = {}1;", many("-", 100_000)),
        format!("int64_t x = {}1;", many("- ", 100_000)),
        format!("int64_t x = {}1;", many("!", 60_000)),
        format!("int64_t x = 1{};", many(" + 1", 100_000)),
        format!("int64_t x = {}1;", many("1 ? 1 : ", 100_000)),
        format!("int64_t x = {}1;", many("x = ", 100_000)),
        format!("int64_t x = n{};", many("[0]", 100_000)),
        format!("{}{}", many("{", 100_000), many("}", 100_000)),
        format!("{} ;", many("if (n) ", 100_000)),
        format!("{}", many("if (n) ; else ", 100_000)),
        many("for (;;) ", 50_000),
        "while (true) { }".into(),
        format!("while (true) {{ {dma} }}"),
        format!("for (;;) {dma}"),
        "for (int64_t i = 0; i < 1000000000; i += 1 + (i & 1)) {}".into(),
        format!("for (int64_t i = 1000000000; i != 0; i = i * 3 + 1) {{ {dma} }}"),
        "int64_t a[1000000000];".into(),
        "int64_t a[100000][100000];".into(),
        "int64_t a[(size_t)-1];".into(),
        "int64_t a[-1] = {0};".into(),
        format!("int64_t x = iv[0];{} togsim_compute(ctx, x, 0, 0, nullptr, B, 1, B, 1);", many("x = x * x + x;", 5000)),
        format!("int64_t x = iv[0];{} if (x) {dma}", many("x = x * x + x;", 100)),
        format!("uint64_t x = iv[0];{} togsim_dma(ctx, 0, 0, x, 1, D, D, 32, 0, 0, nullptr, 0, B, 1, 0);", many("x = (x << 1) ^ (x >> 3);", 60)),
        format!("for (int a = 0; a < 4000; a++) for (int b = 0; b < 4000; b++) {{ int64_t r[1] = {{(a * b) % 100}}; togsim_compute(ctx, 0, 0, 0, nullptr, r, 1, B, 1); }}"),
        "togsim_dma(ctx, 0, 0, 0, 1000000000, D, D, 32, 0, 0, nullptr, 0, B, 1, 0);".into(),
        "togsim_compute(ctx, 0, 0, 0, nullptr, B, 2147483647, B, 1);".into(),
        "f(ctx, iv, n);".into(),
        "auto g = [&](auto x) { return x(x); }; g(g);".into(),
        "int64_t x = 99999999999999999999999;".into(),
        "int64_t x = 1 << 200;".into(),
        "/* never".into(),
        "int64_t x = 'abc".into(),
        "\u{7f}".into(),
        "int64_t größe = 1;".into(),
        format!("switch (n) {{ {} }}", (0..5000).map(|i| format!("case {i}: {dma} break;")).collect::<String>()),
        format!("for (int64_t k = 0; k < 9; k++) {{ {} }}", (0..9).fold(dma.to_owned(), |s, d| format!("int c{d} = 1; for (int64_t k{d} = 0; k{d} < 9; k{d}++) {{ c{d} += iv[0] * c{d}; {s} }}"))),
    ];
    for body in &bodies {
        let shown: String = body.chars().take(60).collect();
        let start = Instant::now();
        let r = import_source(item(body).as_bytes(), &Options::default());
        let took = start.elapsed();
        assert!(took.as_secs() < 20, "{shown}: {took:?}");
        assert!(r.is_err(), "{shown}: accepted");
    }
}

#[test]
fn macros_made_to_harm_end_soon() {
    let mut bomb = String::from("#define A0 1\n");
    for i in 1..40 {
        bomb.push_str(&format!("#define A{i} A{0} + A{0} + A{0} + A{0}\n", i - 1));
    }
    let mut args = String::from("#define F(x) x x x x x x x x\n");
    args.push_str(&format!(
        "int64_t y = {}1{};",
        "F(".repeat(30),
        ")".repeat(30)
    ));
    for text in [
        format!("{bomb}int64_t x = A31;"),
        format!("{bomb}int64_t x = A39;"),
        args,
        "#include \"self.h\"\n".into(),
        "#include \"trace.cpp\"\n".into(),
        "#include \"/etc/passwd\"\n".into(),
        "#include \"../secret.h\"\n".into(),
        "#include <iostream>\n".into(),
        "#if\n#endif".into(),
        "#if 1\n".into(),
        "#else\n".into(),
        format!("{}\n", "#if 1\n".repeat(1000)),
        format!("#if {}1{}\n#endif\n", "(".repeat(1000), ")".repeat(1000)),
        "#if 1/0\n#endif".into(),
        "#define X(".into(),
        "#define X(a) #a\n".into(),
        "#define X X\nint64_t a = X;".into(),
    ] {
        let start = Instant::now();
        let mut f = KernelFolder::new();
        f.add("trace.cpp", format!("{text}\n{PRODUCER}").into_bytes())
            .unwrap();
        f.add("self.h", "#include \"self.h\"\n").unwrap();
        let r = import(&f, &Options::default());
        let shown: String = text.chars().take(50).collect();
        assert!(r.is_err(), "{shown}: accepted");
        assert!(
            start.elapsed().as_secs() < 20,
            "{shown}: {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn long_loops_stay_loops() {
    let text = item(
        "for (int64_t k = 0; k < 1000000000; k++) togsim_compute(ctx, 0, 0, 0, nullptr, B, 1, B, 1);",
    );
    let i = import_source(text.as_bytes(), &Options::default()).unwrap();
    assert_eq!(i.trace.body.len(), 1);
    assert_eq!(i.report.unrolled, 0);
}

#[test]
fn cut_anywhere_a_producer_never_panics() {
    for text in [
        PRODUCER,
        include_str!("pytorchsim/producers/ternaries.cpp"),
        include_str!("pytorchsim/producers/buffers.cpp"),
    ] {
        for end in (0..text.len()).step_by(17) {
            let Some(part) = text.get(..end) else {
                continue;
            };
            let _ = import_source(part.as_bytes(), &Options::default());
        }
        // And with bytes replaced.
        let mut seed = 12345u64;
        for _ in 0..300 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..3 {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = b"(){}[];,*&+-<>=0129aipv\"'#\\\n\xff"[(seed >> 20) as usize % 29];
            }
            if let Ok(i) = import_source(&bytes, &Options::default()) {
                ValidTrace::try_from(i.trace).expect("an imported trace is valid");
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn folders_on_disk() {
    let root = std::env::temp_dir().join(format!("tilesim-folder-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    let dir = root.join("kernel");
    std::fs::create_dir_all(dir.join("m5out")).unwrap();
    std::fs::write(dir.join("trace.cpp"), PRODUCER).unwrap();
    std::fs::write(dir.join("notes.bin"), [0u8; 100]).unwrap();
    std::fs::write(dir.join("m5out/stats.txt"), STATS).unwrap();
    let f = KernelFolder::read(&dir).unwrap();
    assert_eq!(
        f.names().collect::<Vec<_>>(),
        ["m5out/stats.txt", "trace.cpp"]
    );
    import(&f, &Options::default()).unwrap();
    // A link inside the folder is fine, one that leads out is not.
    std::os::unix::fs::symlink("trace.cpp", dir.join("alias.cpp")).unwrap();
    KernelFolder::read(&dir).unwrap();
    std::fs::write(root.join("secret"), "1\t0\n").unwrap();
    std::os::unix::fs::symlink("../secret", dir.join("trace_cycles.tsv")).unwrap();
    let e = KernelFolder::read(&dir).unwrap_err();
    assert!(e.to_string().contains("leads out of the folder"), "{e}");
    std::fs::remove_file(dir.join("trace_cycles.tsv")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.join("units.tsv")).unwrap();
    assert!(KernelFolder::read(&dir).is_err());
    std::fs::remove_file(dir.join("units.tsv")).unwrap();
    // A sparse file of 1 GiB is refused by its size alone.
    let big = std::fs::File::create(dir.join("trace_cycles.tsv")).unwrap();
    big.set_len(1 << 30).unwrap();
    let e = KernelFolder::read(&dir).unwrap_err();
    assert_eq!(e.code, ErrorCode::TooLarge);
    assert!(KernelFolder::read(&root.join("absent")).is_err());
    std::fs::remove_dir_all(&root).unwrap();
}
