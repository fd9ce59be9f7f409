//! Name servers of the machine's own resolver.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_plan::container::files;

use crate::Config;

/// Usual configuration of the machine's resolver.
const USUAL: &str = "/etc/resolv.conf";
/// Files with the upstream name servers of a local stub resolver.
const BEHIND: [&str; 2] = [
    "/run/systemd/resolve/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
];

/// Text of the `resolv.conf` for pods. A file that the operator has set must exist.
pub(crate) fn text(config: &Config) -> io::Result<String> {
    match &config.resolv_conf {
        None => Ok(of_machine(read)),
        Some(none) if none.as_os_str().is_empty() => Ok(nobody(&config.host_addresses())),
        Some(path) => fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("read {}: {error}", path.display()))),
    }
}

/// Text of the `resolv.conf` for the node itself.
pub(crate) fn of_node(config: &Config) -> io::Result<String> {
    match &config.resolv_conf {
        None => Ok(Some(read(USUAL))
            .filter(|usual| !files::servers(usual).is_empty())
            .unwrap_or_else(|| of_machine(read))),
        Some(none) if none.as_os_str().is_empty() => Ok(String::new()),
        Some(path) => fs::read_to_string(path),
    }
}

/// Content of a file of the machine; empty where there is none: others are looked at then.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A loopback server is not reachable from pods with a network of their own. Without any, the
/// machine's programs ask systemd-resolved by its library (nss-resolve), as on Arch Linux.
fn of_machine(read: impl Fn(&str) -> String) -> String {
    let usual = read(USUAL);
    if files::asks_others(&usual) {
        return usual;
    }
    let others = BEHIND.iter().map(|path| read(path));
    let other = others.into_iter().find(|text| files::asks_others(text));
    other.unwrap_or(usual)
}

/// `resolv.conf` without a usable server: pods query themselves and resolve nothing.
fn nobody(node: &[IpAddr]) -> String {
    let own = node.iter().map(|address| {
        if address.is_ipv6() {
            IpAddr::from(Ipv6Addr::LOCALHOST)
        } else {
            Ipv4Addr::LOCALHOST.into()
        }
    });
    own.map(|own| ["nameserver ".to_owned(), own.to_string(), "\n".to_owned()].concat())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_in_each_family_of_the_node() {
        let node = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap());
        assert_eq!(nobody(&node), "nameserver 127.0.0.1\nnameserver ::1\n");
    }

    #[test]
    fn a_stub_on_the_machine_is_not_what_pods_ask() {
        let stub = "# a stub\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n";
        let asked = |usual: &str, resolved: &str, manager: &str| {
            of_machine(|path| {
                let text = match path {
                    USUAL => usual,
                    "/run/systemd/resolve/resolv.conf" => resolved,
                    "/run/NetworkManager/no-stub-resolv.conf" => manager,
                    other => panic!("{other} is read"),
                };
                text.to_owned()
            })
        };
        let (real, other) = ("nameserver 192.0.2.1\n", "nameserver 2001:db8::1\n");
        assert_eq!(asked(stub, real, other), real);
        assert_eq!(asked(stub, "", other), other);
        assert_eq!(
            asked(stub, "nameserver ::1\n", "search example.org\n"),
            stub,
            "there is nothing better"
        );
        assert_eq!(asked("nameserver ::1%lo\n", real, ""), real);
        for usual in ["nameserver 192.0.2.9\n", "nameserver 127.0.0.1\nnameserver 192.0.2.9\n"] {
            assert_eq!(asked(usual, real, other), usual, "the machine's own is good enough");
        }
        for without in ["search a.b\n", ""] {
            assert_eq!(asked(without, real, other), real);
            assert_eq!(asked(without, "", ""), without);
        }
    }
}
