//! Writes every sample trace as an uncompressed container into `fuzz/seeds/container`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use tilesim_traces::{container, load_bytes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for entry in std::fs::read_dir(format!("{root}/traces/samples"))? {
        let path = entry?.path();
        let known = path.extension().is_some_and(|e| e == "tile" || e == "json");
        let (true, Some(stem)) = (known, path.file_stem().and_then(|s| s.to_str())) else {
            continue;
        };
        let trace = load_bytes(stem, &std::fs::read(&path)?)?;
        // Uncompressed: a fuzzer learns nothing from compressed bytes.
        let bytes = container::encode_with(&trace, false)?;
        std::fs::write(format!("{root}/fuzz/seeds/container/{stem}.trace"), bytes)?;
    }
    Ok(())
}
