//! Helper program of this crate's tests.

fn main() -> std::process::ExitCode {
    // Containers must not depend on the umask of the process that starts the agent; this is that of
    // a hardened unit.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    runtime::helper(std::env::args_os().skip(1)).unwrap_or(std::process::ExitCode::FAILURE)
}
