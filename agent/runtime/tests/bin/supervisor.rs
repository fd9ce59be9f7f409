//! The program that this crate's tests run helpers with.

fn main() -> std::process::ExitCode {
    runtime::helper(std::env::args_os().skip(1)).unwrap_or(std::process::ExitCode::FAILURE)
}
