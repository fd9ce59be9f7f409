//! Memory and CPU usage of the idle daemons.

use std::time::Duration;

use tests::machine::Machine;
use tests::process;

use crate::figures::Table;

const WATCHED: Duration = Duration::from_secs(10);
/// Number of memory samples: a lease, which takes more memory for a moment, is renewed once in that
/// time.
const SAMPLES: u32 = 40;

/// PSS of both daemons, and their CPU over ten quiet seconds.
pub(crate) fn idle(machine: &Machine, table: &mut Table, state: &str) -> anyhow::Result<()> {
    let daemons = ["skiff-controlplane", "skiff-agent"]
        .into_iter()
        .map(|name| Ok((name, machine.daemon(name)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let before = daemons
        .iter()
        .map(|(_, pid)| process::cpu_ticks(*pid))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut samples = vec![Vec::new(); daemons.len()];
    for _ in 0..SAMPLES {
        std::thread::park_timeout(WATCHED / SAMPLES);
        for ((_, pid), samples) in daemons.iter().zip(&mut samples) {
            samples.push(process::pss_kib(*pid)?);
        }
    }
    for (((name, pid), before), mut samples) in daemons.into_iter().zip(before).zip(samples) {
        let ticks = process::cpu_ticks(pid)?.saturating_sub(before);
        // A tick is 10 ms: over 10 s each tick is a permille of a core.
        let (whole, tenth) = (ticks / 10, ticks % 10);
        samples.sort_unstable();
        let mebibytes = |kibibytes: Option<&u64>| kibibytes.map_or(0, |kibibytes| kibibytes.div_ceil(103) / 10);
        let (median, most) = (mebibytes(samples.get(samples.len() / 2)), mebibytes(samples.last()));
        table.row(
            format!("{name}, {state}"),
            format!("PSS median {median} MiB, most {most} MiB, CPU {whole}.{tenth} % of a core"),
        );
    }
    Ok(())
}
