//! Ports of the node that lead to pods: one nft table, made anew from the records at each change of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use super::masquerade::{self, nft};
use crate::{Attachment, Cidr, Error};

fn table(bridge: &str) -> String {
    format!("{}_ports", masquerade::table(bridge))
}

/// Makes the table say what the attachments say, in one transaction; without any port there is none.
pub(super) fn replace(bridge: &str, range: Cidr, attachments: &[Attachment]) -> Result<(), Error> {
    let (own, any) = elements(attachments);
    if own.is_empty() && any.is_empty() {
        return remove(bridge);
    }
    reach_loopback(bridge)?;
    let (table, range) = (table(bridge), range.network_range());
    let listed = |elements: &BTreeMap<String, String>| {
        let all: Vec<String> = elements.iter().map(|(from, to)| format!("{from} : {to}")).collect();
        if all.is_empty() {
            String::new()
        } else {
            format!("elements = {{ {} }};", all.join(", "))
        }
    };
    let (own, any) = (listed(&own), listed(&any));
    nft(&format!(
        "add table ip {table}
         delete table ip {table}
         table ip {table} {{
             map own {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; {own} }}
             map any {{ type inet_proto . inet_service : ipv4_addr . inet_service; {any} }}
             chain lead {{
                 dnat ip to ip daddr . meta l4proto . th dport map @own
                 dnat ip to meta l4proto . th dport map @any
             }}
             chain prerouting {{
                 type nat hook prerouting priority dstnat; policy accept;
                 fib daddr type local jump lead
             }}
             chain output {{
                 type nat hook output priority -100; policy accept;
                 fib daddr type local jump lead
             }}
             chain postrouting {{
                 type nat hook postrouting priority srcnat; policy accept;
                 ip saddr {range} ip daddr {range} ct status dnat masquerade
                 ip saddr 127.0.0.0/8 oifname \"{bridge}\" masquerade
             }}
             chain guard {{
                 type filter hook prerouting priority raw; policy accept;
                 iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop
             }}
         }}\n"
    ))
}

/// Removes the table. Success when there is none.
pub(super) fn remove(bridge: &str) -> Result<(), Error> {
    let table = table(bridge);
    nft(&format!("add table ip {table}\ndelete table ip {table}\n"))
}

/// What the two maps hold: for one address of the node, and for all. Of two pods that want the same the first one gets it.
fn elements(attachments: &[Attachment]) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut own, mut any) = (BTreeMap::new(), BTreeMap::new());
    for attachment in attachments {
        let Some(pod) = attachment.addresses.first().map(|held| held.address) else {
            continue;
        };
        for port in &attachment.ports {
            let protocol = match port.protocol.as_str() {
                "UDP" => "udp",
                "SCTP" => "sctp",
                _ => "tcp",
            };
            let (from, to) = (
                format!("{protocol} . {}", port.host_port),
                format!("{pod} . {}", port.container_port),
            );
            let place = match port.host_address {
                None | Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Some((&mut any, from)),
                Some(IpAddr::V4(address)) => Some((&mut own, format!("{address} . {from}"))),
                // The pods have no addresses of version 6 to lead to.
                Some(IpAddr::V6(_)) => None,
            };
            if let Some((elements, from)) = place {
                elements.entry(from).or_insert(to);
            }
        }
    }
    (own, any)
}

/// Lets what the node sends to a port of its own loopback leave for the bridge. The table's `guard` keeps pods from using the
/// same way back to the node's loopback.
fn reach_loopback(bridge: &str) -> Result<(), Error> {
    let path = PathBuf::from("/proc/sys/net/ipv4/conf")
        .join(bridge)
        .join("route_localnet");
    std::fs::write(&path, "1").map_err(|source| Error::io("write", &path, source))
}
