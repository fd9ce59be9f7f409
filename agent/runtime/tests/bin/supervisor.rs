//! The program that this crate's tests run supervisors with.

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    runtime::supervisor::main(&args)
}
