//! Time of the control plane from `exec` to ready: the first start creates keys and a database, the
//! second finds them.

use tests::server::Server;

use crate::figures::{Table, milliseconds, now};

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
