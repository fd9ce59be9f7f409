//! Points at which a test stops a process, to kill it or another process there. Release builds have
//! none.

#[cfg(debug_assertions)]
use std::path::PathBuf;

/// Environment variable that names a file with the name of one point. The first process that
/// reaches the point removes the file, writes its own PID to a file of the same name with the
/// extension [`REACHED`], and stops as by SIGSTOP.
pub const FILE: &str = "SKIFF_FAILPOINT";
/// Extension of the file with the PID.
pub const REACHED: &str = "reached";

#[cfg(debug_assertions)]
fn file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// Stops the process if a test has selected this point.
#[cfg(debug_assertions)]
pub fn reach(point: &str) {
    let Some(file) = file() else { return };
    if std::fs::read(&file).is_ok_and(|wanted| wanted == point.as_bytes()) && std::fs::remove_file(&file).is_ok() {
        let told = std::fs::write(file.with_extension(REACHED), std::process::id().to_string());
        if told.is_ok() {
            // SIGSTOP cannot be blocked or ignored.
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP).ok();
        }
    }
}

/// Does nothing in release builds.
#[cfg(not(debug_assertions))]
pub const fn reach(_point: &str) {}

/// Environment variables that pass the failpoints on to a child whose environment is cleared.
pub fn passed_on() -> Vec<(&'static str, std::ffi::OsString)> {
    #[cfg(debug_assertions)]
    let passed = file().map(|file| (FILE, file.into_os_string())).into_iter().collect();
    #[cfg(not(debug_assertions))]
    let passed = Vec::new();
    passed
}
