//! `tilesim`: the command line.

fn main() -> std::process::ExitCode {
    tilesim_client::main()
}
