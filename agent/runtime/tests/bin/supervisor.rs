//! The program that this crate's tests run supervisors with.

fn main() -> std::process::ExitCode {
    runtime::supervisor::main()
}
