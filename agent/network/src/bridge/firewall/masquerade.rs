//! One nft table per bridge and family, which masquerades packets that leave the pods' range. That
//! of IPv6 drops what is sent to link-local addresses through the node: policies do not cover them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::nft::{has_ipv6, table};
use crate::{Cidr, Error, Ranges};

/// Family of a table, with nft's keywords.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bridge) struct Family {
    /// Keyword of tables, and before `saddr` and `daddr`.
    pub(in crate::bridge) word: &'static str,
    /// Type of an address in a set.
    pub(in crate::bridge) kind: &'static str,
    multicast: &'static str,
    pub(in crate::bridge) v6: bool,
}

const V4: Family = Family {
    word: "ip",
    kind: "ipv4_addr",
    multicast: "224.0.0.0/4",
    v6: false,
};
const V6: Family = Family {
    word: "ip6",
    kind: "ipv6_addr",
    multicast: "ff00::/8",
    v6: true,
};

/// Families of the ranges, with the range of each.
pub(in crate::bridge) fn families(ranges: Ranges) -> impl Iterator<Item = (Family, Cidr)> {
    ranges
        .iter()
        .map(|range| (if range.is_ipv6() { V6 } else { V4 }, range))
}

/// Creates or replaces the tables in one transaction.
pub(in crate::bridge) fn replace(bridge: &str, ranges: Ranges, direct: &[Cidr]) -> Result<(), Error> {
    let made = families(ranges).map(|(family, range)| made(bridge, family, range, direct));
    nft(&made.collect::<String>())
}

fn made(bridge: &str, family: Family, range: Cidr, direct: &[Cidr]) -> String {
    let table = table(bridge);
    let Family {
        word,
        kind,
        multicast,
        v6,
    } = family;
    let mut near = vec![range.network_range().to_string()];
    let direct = direct.iter().filter(|direct| direct.is_ipv6() == v6);
    near.extend(direct.map(|range| range.network_range().to_string()));
    near.dedup();
    // Multicast packets are not masqueraded.
    near.push(multicast.to_owned());
    let (range, near) = (range.network_range(), near.join(", "));
    let passed = if v6 {
        format!(
            "chain passed {{
                 type filter hook forward priority -300; policy accept;
                 icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
                 iifname \"{bridge}\" ip6 daddr fe80::/10 drop
             }}"
        )
    } else {
        String::new()
    };
    format!(
        "add table {word} {table}
         delete table {word} {table}
         table {word} {table} {{
             set near {{ type {kind}; flags interval; auto-merge; elements = {{ {near} }}; }}
             chain postrouting {{
                 type nat hook postrouting priority srcnat; policy accept;
                 {word} saddr {range} {word} daddr != @near masquerade
             }}
             {passed}
         }}\n"
    )
}

/// Removes the tables of these ranges. Succeeds if there are none.
pub(in crate::bridge) fn remove(bridge: &str, ranges: Option<Ranges>) -> Result<(), Error> {
    nft(&gone(&table(bridge), ranges))
}

/// Commands that delete a table. The IPv4 table also serves the API server's Service, whatever the
/// ranges. Without known ranges, tables of both families may exist.
pub(in crate::bridge) fn gone(table: &str, ranges: Option<Ranges>) -> String {
    let v6 = ranges.map_or_else(has_ipv6, |ranges| ranges.of_family(true).is_some());
    let families = std::iter::once(V4).chain(v6.then_some(V6));
    let each = families.map(|Family { word, .. }| format!("add table {word} {table}\ndelete table {word} {table}\n"));
    each.collect()
}

pub(in crate::bridge) fn nft(script: &str) -> Result<(), Error> {
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
