//! Memory and CPU usage of idle processes.

use std::time::Duration;

use tests::machine::Machine;
use tests::process;

use crate::figures::Table;

const WATCHED: Duration = Duration::from_secs(10);
/// Number of memory samples: a lease, which takes more memory for a moment, is renewed once in that
/// time.
const SAMPLES: u32 = 40;

/// Watches both daemons.
pub(crate) fn idle(machine: &Machine, table: &mut Table, state: &str) -> anyhow::Result<()> {
    let names = ["skiff-controlplane", "skiff-agent"];
    let pids = names.into_iter().map(|name| machine.daemon(name));
    let pids = pids.collect::<anyhow::Result<Vec<_>>>()?;
    for (name, figure) in names.into_iter().zip(watch(&pids)?) {
        table.row(format!("{name}, {state}"), figure);
    }
    Ok(())
}

/// PSS of each process, and its CPU over ten quiet seconds.
pub(crate) fn watch(pids: &[i32]) -> anyhow::Result<Vec<String>> {
    let ticks = pids.iter().map(|pid| process::cpu_ticks(*pid));
    let before = ticks.collect::<anyhow::Result<Vec<_>>>()?;
    let mut samples = vec![Vec::new(); pids.len()];
    for _ in 0..SAMPLES {
        std::thread::park_timeout(WATCHED / SAMPLES);
        for (pid, samples) in pids.iter().zip(&mut samples) {
            samples.push(process::pss_kib(*pid)?);
        }
    }
    let mut figures = Vec::new();
    for ((pid, before), mut samples) in pids.iter().zip(before).zip(samples) {
        let ticks = process::cpu_ticks(*pid)?.saturating_sub(before);
        // A tick is 10 ms: over 10 s each tick is a permille of a core.
        let (whole, tenth) = (ticks / 10, ticks % 10);
        samples.sort_unstable();
        let mebibytes = |kibibytes: Option<&u64>| kibibytes.map_or(0, |kibibytes| kibibytes.div_ceil(103) / 10);
        let (median, most) = (mebibytes(samples.get(samples.len() / 2)), mebibytes(samples.last()));
        figures.push(format!(
            "PSS median {median} MiB, most {most} MiB, CPU {whole}.{tenth} % of a core"
        ));
    }
    Ok(figures)
}
