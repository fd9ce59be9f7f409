//! One nft table for each bridge: what leaves the pods' ranges carries the node's address, and what is for the API
//! server's Service reaches the server.

use std::io::Write as _;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Cidr, Error};

pub(super) fn table(bridge: &str) -> String {
    format!("skiff_{}", bridge.replace('-', "_"))
}

/// Makes the table, or replaces the one that is there, in one transaction.
pub(super) fn replace(bridge: &str, range: Cidr, direct: &[Cidr]) -> Result<(), Error> {
    let table = table(bridge);
    let mut near = vec![range.network_range().to_string()];
    near.extend(direct.iter().map(|range| range.network_range().to_string()));
    near.dedup();
    // Multicast never leaves by this road.
    near.push("224.0.0.0/4".to_owned());
    let (range, near) = (range.network_range(), near.join(", "));
    nft(&format!(
        "add table ip {table}
         delete table ip {table}
         table ip {table} {{
             set near {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {near} }}; }}
             chain postrouting {{
                 type nat hook postrouting priority srcnat; policy accept;
                 ip saddr {range} ip daddr != @near masquerade
             }}
         }}\n"
    ))
}

/// Leads connections to `service` to `server` instead, and none to where an earlier call led them.
pub(super) fn redirect(bridge: &str, service: SocketAddrV4, server: SocketAddrV4) -> Result<(), Error> {
    let table = table(bridge);
    let rule = format!(
        "ip daddr {} tcp dport {} dnat to {server}",
        service.ip(),
        service.port()
    );
    nft(&format!(
        "add table ip {table}
         add chain ip {table} prerouting {{ type nat hook prerouting priority dstnat; policy accept; }}
         add chain ip {table} output {{ type nat hook output priority -100; policy accept; }}
         flush chain ip {table} prerouting
         flush chain ip {table} output
         add rule ip {table} prerouting {rule}
         add rule ip {table} output {rule}\n"
    ))
}

/// Removes the table. Success when there is none.
pub(super) fn remove(bridge: &str) -> Result<(), Error> {
    let table = table(bridge);
    nft(&format!("add table ip {table}\ndelete table ip {table}\n"))
}

pub(super) fn nft(script: &str) -> Result<(), Error> {
    let program = Path::new("nft");
    let failed = |source| Error::io("run", program, source);
    let mut child = Command::new(program)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Kernel {
        doing: "change the nft table",
        cause: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
