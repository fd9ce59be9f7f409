//! Host ports: one nft table for each family, generated from the records at each change.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::masquerade::{self, Family, nft};
use crate::bridge::Inner;
use crate::bridge::kernel::settings;
use crate::nft::conntrack;
use crate::{Attachment, Cidr, Error, PortMapping, Ranges};

fn table(bridge: &str) -> String {
    format!("{}_ports", crate::nft::table(bridge))
}

impl Inner {
    /// Updates the host port tables from the records, and deletes the conntrack entries of the
    /// changed UDP ports.
    pub(in crate::bridge) fn lead_ports(&self, changed: &[PortMapping]) -> Result<(), Error> {
        let guard = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let (ranges, attachments) = {
            let records = self.records();
            (records.ranges(), records.attachments())
        };
        if let Some(ranges) = ranges {
            replace(&self.config.bridge, ranges, &attachments)?;
        }
        drop(guard);
        if let Err(error) = conntrack::forget(changed) {
            tracing::warn!(%error, "datagrams to a port of the node may go where it led before");
        }
        Ok(())
    }
}

/// Replaces the tables by those of the attachments, in one transaction; without any port there is
/// none. `route_localnet` is enabled after the guard rule exists, and disabled before it is
/// removed.
fn replace(bridge: &str, ranges: Ranges, attachments: &[Attachment]) -> Result<(), Error> {
    let mut script = masquerade::gone(&table(bridge), Some(ranges));
    let mut guarded = false;
    for (family, range) in masquerade::families(ranges) {
        let (own, any) = elements(attachments, family.v6);
        if own.is_empty() && any.is_empty() {
            continue;
        }
        guarded |= !family.v6;
        script.push_str(&made(bridge, family, range, (&own, &any)));
    }
    if !guarded {
        settings::reach_loopback(bridge, false)?;
        return nft(&script);
    }
    let done = nft(&script).and_then(|()| settings::reach_loopback(bridge, true));
    if done.is_err()
        && let Err(error) = settings::reach_loopback(bridge, false)
    {
        // It is unknown whether the guard rule exists.
        tracing::warn!(%error, "the way from the node's loopback to pods could not be closed");
    }
    done
}

type Elements = BTreeMap<String, String>;

/// Table of a family. Only IPv4 supports host ports on the node's loopback, and requires a guard
/// rule for the opposite direction.
fn made(bridge: &str, family: Family, range: Cidr, (own, any): (&Elements, &Elements)) -> String {
    let Family { word, kind, v6, .. } = family;
    let (table, range) = (table(bridge), range.network_range());
    let listed = |elements: &Elements| {
        let all: Vec<String> = elements.iter().map(|(from, to)| format!("{from} : {to}")).collect();
        if all.is_empty() {
            String::new()
        } else {
            format!("elements = {{ {} }};", all.join(", "))
        }
    };
    let (own, any) = (listed(own), listed(any));
    let (out, back) = if v6 {
        (String::new(), String::new())
    } else {
        (
            format!("ip saddr 127.0.0.0/8 oifname \"{bridge}\" masquerade"),
            format!(
                "chain guard {{
                     type filter hook prerouting priority raw; policy accept;
                     iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop
                 }}"
            ),
        )
    };
    format!(
        "table {word} {table} {{
             map own {{ type {kind} . inet_proto . inet_service : {kind} . inet_service; {own} }}
             map any {{ type inet_proto . inet_service : {kind} . inet_service; {any} }}
             chain lead {{
                 dnat {word} to {word} daddr . meta l4proto . th dport map @own
                 dnat {word} to meta l4proto . th dport map @any
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
                 {word} saddr {range} {word} daddr {range} ct status dnat masquerade
                 {out}
             }}
             {back}
         }}\n"
    )
}

/// Removes the tables. Succeeds if there are none. The guard rule stays while `route_localnet` is
/// enabled.
pub(in crate::bridge) fn remove(bridge: &str, ranges: Option<Ranges>) -> Result<(), Error> {
    settings::reach_loopback(bridge, false)?;
    nft(&masquerade::gone(&table(bridge), ranges))
}

/// Elements of the two maps of a family: ports of one host address, and of all. If two pods want
/// the same port, the first one gets it.
fn elements(attachments: &[Attachment], v6: bool) -> (Elements, Elements) {
    let (mut own, mut any) = (Elements::new(), Elements::new());
    for attachment in attachments {
        let mut held = attachment.addresses.iter();
        let Some(pod) = held.find(|held| held.is_ipv6() == v6).map(|held| held.address) else {
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
                None => Some((&mut any, from)),
                Some(address) if address.is_ipv6() != v6 => None,
                Some(address) if address.is_unspecified() => Some((&mut any, from)),
                Some(address) => Some((&mut own, format!("{address} . {from}"))),
            };
            if let Some((elements, from)) = place {
                elements.entry(from).or_insert(to);
            }
        }
    }
    (own, any)
}
