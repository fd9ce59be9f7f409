//! Stop signals of containers.

use crate::value::invalid::Invalid;
use crate::workload::validation::pod_spec::os::{LINUX, WINDOWS};

/// Signals of the kernel by name.
const PLAIN: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// Validates the stop signal of a container at `path`, in a pod with this `os`.
pub(super) fn check(errors: &mut Vec<Invalid>, signal: Option<&str>, path: &str, os: Option<&str>) {
    let Some(signal) = signal else { return };
    let supported: Vec<String> = match os {
        None | Some("") => {
            let detail = "may not be set for containers with empty `spec.os.name`";
            errors.push(Invalid::forbidden(path, detail));
            return;
        }
        Some(WINDOWS) => ["SIGKILL", "SIGTERM"].map(str::to_owned).to_vec(),
        Some(LINUX) => of_linux(),
        // An unknown OS name is reported by the validation of `spec.os`.
        Some(_) => return,
    };
    if !supported.iter().any(|own| own == signal) {
        let supported: Vec<&str> = supported.iter().map(String::as_str).collect();
        errors.push(Invalid::not_supported(path, signal, &supported));
    }
}

fn of_linux() -> Vec<String> {
    let mut all: Vec<String> = PLAIN.map(str::to_owned).to_vec();
    all.extend(["SIGRTMIN", "SIGRTMAX"].map(str::to_owned));
    all.extend((1..=15).map(|above| format!("SIGRTMIN+{above}")));
    all.extend((1..=14).map(|below| format!("SIGRTMAX-{below}")));
    all.sort_unstable();
    all
}
