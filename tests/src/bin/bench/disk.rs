//! The probe: how long this disk takes to make 4 KiB durable, the unit that every durable figure is read against.

use std::io::Write as _;

use crate::figures::{Table, now, percentiles};

/// Appends 4 KiB and calls `fdatasync`, 500 times.
pub(crate) fn probe(table: &mut Table) -> anyhow::Result<()> {
    let mut file = tempfile::tempfile()?;
    let block = [7_u8; 4096];
    let mut times = Vec::new();
    for _ in 0..500 {
        let start = now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    table.row("probe: append 4 KiB + fdatasync", percentiles(&mut times));
    Ok(())
}
