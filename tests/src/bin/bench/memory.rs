//! What the daemons hold and use when nothing happens.

use std::time::Duration;

use tests::machine::Machine;
use tests::process;

use crate::figures::Table;

const WATCHED: Duration = Duration::from_secs(10);

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
    std::thread::park_timeout(WATCHED);
    for ((name, pid), before) in daemons.into_iter().zip(before) {
        let ticks = process::cpu_ticks(pid)?.saturating_sub(before);
        // A tick is 10 ms: over 10 s each tick is a permille of a core.
        let (whole, tenth) = (ticks / 10, ticks % 10);
        let mebibytes = process::pss_kib(pid)?.div_ceil(103) / 10;
        table.row(
            format!("{name}, {state}"),
            format!("PSS {mebibytes} MiB, CPU {whole}.{tenth} % of a core"),
        );
    }
    Ok(())
}
