//! Lets producers that `tilesim record` loads find the recording calls in the program itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        for call in [
            "togsim_abi_version",
            "togsim_core_alloc",
            "togsim_compute_barrier",
            "togsim_dispatch",
            "togsim_dma",
            "togsim_compute",
            "togsim_memory_barrier",
        ] {
            println!("cargo::rustc-link-arg-bin=tilesim=-Wl,--export-dynamic-symbol={call}");
        }
    }
}
