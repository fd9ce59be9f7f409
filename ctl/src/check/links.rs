//! Types of links and families of nftables, requested in a temporary network namespace: the kernel
//! loads its modules as it will for the agent.

use std::io;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::{Finding, Level};
use crate::netlink;

/// Types of links that the agent creates.
const KINDS: [&str; 2] = ["bridge", "veth"];
/// Required to reach pods of nodes behind a router.
const TUNNEL: &str = "vxlan";
/// Families of nftables: their names and numbers in the kernel.
const FAMILIES: [(&str, u8); 2] = [("ip", 2), ("ip6", 10)];
/// Expressions of rules that kernels may be built without, such as those of WSL.
const EXPRESSIONS: [&str; 6] = ["ct", "fib", "masq", "nat", "numgen", "reject"];

/// Features that the kernel lacks.
pub(super) struct Lacks {
    kinds: Vec<&'static str>,
    families: Vec<&'static str>,
    expressions: Vec<&'static str>,
}

/// Expressions that rules of a family may not have.
fn lacking(family: u8) -> Result<Vec<&'static str>, Errno> {
    let mut lacking = Vec::new();
    for expression in EXPRESSIONS {
        if netlink::new_rule(family, expression)? == Some(Errno::ENOENT) {
            lacking.push(expression);
        }
    }
    Ok(lacking)
}

/// Runs the requests in a thread that ends with its namespace.
pub(super) fn probe() -> Result<Lacks, Errno> {
    let asking = || -> Result<Lacks, Errno> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let mut lacks = Lacks {
            kinds: Vec::new(),
            families: Vec::new(),
            expressions: Vec::new(),
        };
        for kind in KINDS.into_iter().chain([TUNNEL]) {
            if netlink::new_link(kind)? == Some(Errno::EOPNOTSUPP) {
                lacks.kinds.push(kind);
            }
        }
        for (name, family) in FAMILIES {
            match netlink::new_table(family) {
                Ok(None | Some(Errno::EEXIST)) if name == "ip" => lacks.expressions = lacking(family)?,
                Ok(None | Some(Errno::EEXIST)) if lacking(family)?.is_empty() => {}
                Ok(_) | Err(Errno::EPROTONOSUPPORT) => lacks.families.push(name),
                Err(error) => return Err(error),
            }
        }
        Ok(lacks)
    };
    std::thread::spawn(asking).join().unwrap_or(Err(Errno::EIO))
}

pub(super) fn kinds(probed: &Result<Lacks, Errno>) -> Finding {
    let name = "links";
    let lacks = match probed {
        Ok(lacks) => &lacks.kinds,
        Err(error) => return unasked(name, *error),
    };
    if lacks.is_empty() {
        return Finding::ok(name, "bridge, veth, vxlan");
    }
    let level = if lacks.as_slice() == [TUNNEL] {
        Level::Warn
    } else {
        Level::Fail
    };
    let mend = format!("`modprobe {}`, or take a kernel that has them", lacks.join(" "));
    Finding::bad(level, name, format!("the kernel has no {}", lacks.join(", ")), mend)
}

pub(super) fn nftables(probed: &Result<Lacks, Errno>) -> Finding {
    let name = "nftables";
    match probed {
        Ok(Lacks { expressions, .. }) if !expressions.is_empty() => {
            let options = expressions.iter().map(|name| {
                let of_family = if matches!(*name, "fib" | "reject") { "_IPV4" } else { "" };
                format!("CONFIG_NFT_{}{of_family}", name.to_uppercase())
            });
            let mend = format!("take a kernel with {}", options.collect::<Vec<_>>().join(", "));
            let found = format!("the kernel's rules have no {}", expressions.join(", "));
            Finding::bad(Level::Fail, name, found, mend)
        }
        Ok(lacks) if lacks.families.is_empty() => Finding::ok(name, "tables of ip, ip6"),
        Ok(lacks) if lacks.families.as_slice() == ["ip6"] => {
            let mend = "pods have no addresses of IPv6: take a kernel with CONFIG_NF_TABLES_IPV6, CONFIG_NFT_FIB_IPV6 and \
                        CONFIG_NFT_REJECT_IPV6";
            Finding::bad(Level::Warn, name, "the kernel has no full tables of ip6", mend)
        }
        Ok(_) => {
            let mend = "`modprobe nf_tables`, or take a kernel with CONFIG_NF_TABLES and CONFIG_NF_TABLES_IPV4";
            Finding::bad(Level::Fail, name, "the kernel has no tables", mend)
        }
        Err(error) => unasked(name, *error),
    }
}

fn unasked(name: &'static str, error: Errno) -> Finding {
    let found = format!("no network namespace can be made: {}", io::Error::from(error));
    let mend = "pods need CAP_SYS_ADMIN and a kernel with CONFIG_NET_NS";
    Finding::bad(Level::Fail, name, found, mend)
}

#[cfg(test)]
mod tests {
    use super::{Lacks, Level, nftables, probe};

    #[test]
    fn what_rules_lack_is_told_by_the_kernels_options() {
        let lacks = Lacks {
            kinds: Vec::new(),
            families: vec!["ip6"],
            expressions: vec!["fib", "numgen"],
        };
        let found = nftables(&Ok(lacks));
        assert_eq!(found.level, Level::Fail);
        let line = found.line();
        assert!(line.contains("CONFIG_NFT_FIB_IPV4, CONFIG_NFT_NUMGEN"), "{line}");
        // Where the tests run, there are pods.
        assert_eq!(nftables(&probe()).level, Level::Ok);
    }
}
