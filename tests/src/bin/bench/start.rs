//! Time that this disk takes to make 4 KiB durable, the unit that every durable figure is read against; and the time of the
//! control plane from `exec` to ready: the first start creates keys and a database, the second finds them.

use std::io::Write as _;

use tests::server::Server;

use crate::figures::{Table, milliseconds, now, percentiles};

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

/// Starts the control plane twice on one state directory.
pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    let start = now();
    let mut server = Server::start(None, "127.0.0.1:7443")?;
    server.ready().await?;
    table.row("exec -> /readyz, first start", milliseconds(start.elapsed()));
    server.kill()?;
    let start = now();
    server.again()?;
    server.ready().await?;
    table.row("exec -> /readyz, next start", milliseconds(start.elapsed()));
    server.finish()
}
