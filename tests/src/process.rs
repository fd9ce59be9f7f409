//! Running programs to completion, and the kernel's information about running processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail};

/// Returns the directory of the workspace's programs: that of the running test or benchmark.
///
/// # Errors
/// Fails if the running executable has no such folder.
pub fn programs() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("the running executable")?;
    let folder = own.parent().context("its folder")?;
    let folder = if folder.ends_with("deps") {
        folder.parent().context("the target folder")?
    } else {
        folder
    };
    Ok(folder.to_path_buf())
}

/// Runs a program and returns what it printed on standard output.
///
/// # Errors
/// Fails if it cannot be started or does not exit with 0; the message holds both outputs.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, both(&output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Standard output and standard error of a finished program, for messages.
pub fn both(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Every process of the machine whose command line holds `text`, with that command line.
///
/// # Errors
/// Fails if `/proc` cannot be read.
pub fn with_command_line(text: &str) -> anyhow::Result<Vec<(i32, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push((pid, line));
        }
    }
    Ok(found)
}

/// Proportional set size of a process in KiB, from `/proc/PID/smaps_rollup`.
///
/// # Errors
/// Fails if the process is gone or the kernel does not tell.
pub fn pss_kib(pid: i32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .context("a Pss line")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// Memory that belongs to no file, in KiB: what a process has allocated and touched.
///
/// # Errors
/// Fails if the process is gone or the kernel does not tell.
pub fn anonymous_kib(pid: i32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))
        .context("an Anonymous line")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// Private memory of a process, in KiB.
///
/// # Errors
/// Fails if the process is gone or the kernel does not tell.
pub fn private_kib(pid: i32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let mut sum = 0;
    for line in text.lines().filter(|line| line.starts_with("Private_")) {
        sum += line.split_whitespace().nth(1).context("a number")?.parse::<u64>()?;
    }
    Ok(sum)
}

/// CPU time that a process has used, user and system, in clock ticks of 10 ms.
///
/// # Errors
/// Fails if the process is gone.
pub fn cpu_ticks(pid: i32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = text.rsplit_once(')').context("a command name in brackets")?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next().context("utime")?.parse()?;
    let system: u64 = fields.next().context("stime")?.parse()?;
    Ok(user + system)
}

/// The first process of a container of the pod with this uid: the one that is process 1 in a PID namespace of its own.
///
/// # Errors
/// Fails if the pod has none.
pub fn container_of(uid: &str) -> anyhow::Result<i32> {
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let (Ok(groups), Ok(status)) = (
            std::fs::read_to_string(entry.path().join("cgroup")),
            std::fs::read_to_string(entry.path().join("status")),
        ) else {
            continue;
        };
        let first = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .is_some_and(|numbers| numbers.split_whitespace().count() > 1 && numbers.trim_end().ends_with("\t1"));
        if groups.contains(uid) && first {
            return Ok(pid);
        }
    }
    bail!("no process is the first of a container of pod {uid}")
}

/// Every stock kubectl on this machine, oldest first: those beside the real file of `kubectl`, else `kubectl` itself.
///
/// # Errors
/// Fails if there is none.
pub fn kubectls() -> anyhow::Result<Vec<PathBuf>> {
    let plain = run(Command::new("sh").args(["-c", "command -v kubectl"])).context("a kubectl on this machine")?;
    let real = std::fs::canonicalize(plain.trim())?;
    let folder = real.parent().unwrap_or(Path::new("/"));
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix("kubectl."))
                .is_some_and(|version| version.chars().all(|letter| letter.is_ascii_digit() || letter == '.'))
        })
        .collect();
    found.sort();
    if found.is_empty() {
        found.push(real);
    }
    Ok(found)
}

/// Forgets the highest resident size so far and returns today's, in KiB.
///
/// # Errors
/// Fails if the process is gone.
pub fn reset_peak(pid: i32) -> anyhow::Result<u64> {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    peak_kib(pid)
}

/// The highest resident size of a process since [`reset_peak`], in KiB.
///
/// # Errors
/// Fails if the process is gone.
pub fn peak_kib(pid: i32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let figure = line.and_then(|line| line.split_whitespace().next());
    Ok(figure.context("VmHWM")?.parse()?)
}
