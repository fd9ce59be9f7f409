//! The machine's own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use http::Uri;
use tracing::{info, warn};

/// Documentation addresses (RFC 5737, RFC 3849): routed by the default route.
const ANYWHERE: &str = "192.0.2.1:9";
const ANYWHERE_V6: &str = "[2001:db8::1]:9";
/// Pause between two attempts to find an address.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval of checks of the addresses.
const LOOK: Duration = Duration::from_secs(10);

/// The machine has lost the addresses that its Node has, and has others. The agent starts again.
#[derive(Debug, thiserror::Error)]
#[error("the machine's address is {now:?} and no longer {before:?}")]
pub(crate) struct Moved {
    before: Vec<IpAddr>,
    now: Vec<IpAddr>,
}

/// Choice of the node's addresses where none are given: that of the interface that leads to the API
/// server; if the server is this machine itself, of the one that leads anywhere else. After it one
/// of the other family, if pods have addresses of that and the machine has a route with it.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// `HOST:PORT` of each server.
    servers: Vec<String>,
    /// True if pods have addresses of IPv4, and of IPv6.
    families: (bool, bool),
}

impl Choice {
    pub(crate) fn new(servers: &[Uri], families: (bool, bool)) -> Self {
        let each = servers.iter();
        let each = each.filter_map(|uri| Some(format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(443))));
        Self {
            servers: each.collect(),
            families,
        }
    }

    /// Returns the addresses; `None` while the machine has no route to a server, or no name server
    /// knows it yet: any other address may be one that other machines have as well.
    fn find(&self) -> Option<Vec<IpAddr>> {
        let towards_server = self.servers.iter().find_map(|server| source(server))?;
        let own = if towards_server.is_loopback() {
            let anywhere = source(ANYWHERE).or_else(|| source(ANYWHERE_V6));
            anywhere.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
        } else {
            towards_server
        };
        let (wanted, target) = if own.is_ipv6() {
            (self.families.0, ANYWHERE)
        } else {
            (self.families.1, ANYWHERE_V6)
        };
        let other = wanted.then(|| source(target)).flatten();
        Some(std::iter::once(own).chain(other).collect())
    }

    /// Waits until the machine has addresses: at its start the network may come later.
    pub(crate) async fn made(&self) -> Vec<IpAddr> {
        let mut told = false;
        loop {
            if let Some(found) = self.look().await {
                return found;
            }
            if !std::mem::replace(&mut told, true) {
                warn!(servers = ?self.servers, "there is no way to the API server yet; it is waited for");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns once the machine has lost these addresses, or those of one family, and has others
    /// instead; or one, where it had only its loopback. New addresses beside them change nothing.
    async fn moved(&self, before: Vec<IpAddr>) -> Moved {
        let mut earlier: Vec<IpAddr> = Vec::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let lost = before.iter().copied().filter(|own| own.is_loopback() || !has(*own));
            let lost: Vec<IpAddr> = lost.collect();
            // An address may be away for a moment, as while a lease is renewed.
            if !lost.is_empty()
                && lost == earlier
                && let Some(now) = self.look().await.filter(|now| are_replaced(&lost, &before, now))
            {
                return Moved { before, now };
            }
            earlier = lost;
        }
    }

    /// Like [`Self::find`], beside the executor: the name may have to be asked for.
    async fn look(&self) -> Option<Vec<IpAddr>> {
        let own = self.clone();
        let found = common::task::spawn_blocking(move || own.find()).await;
        found.inspect_err(|error| info!(%error, "look for an address")).ok()?
    }
}

/// Returns once the machine has lost addresses that were chosen for it; never for given ones, whose
/// absence is logged.
pub(crate) async fn lost(choice: Option<Choice>, addresses: Vec<IpAddr>) -> Moved {
    if let Some(choice) = choice {
        return choice.moved(addresses).await;
    }
    let mut were_there = true;
    loop {
        let are_there = addresses.iter().any(|own| has(*own));
        if were_there && !are_there {
            warn!(
                ?addresses,
                "the machine does not have the addresses that --address gives its node"
            );
        }
        were_there = are_there;
        tokio::time::sleep(LOOK).await;
    }
}

/// True if there are others instead of the lost addresses. One without another of its family may
/// come back, and is waited for where the machine has kept an address.
fn are_replaced(lost: &[IpAddr], before: &[IpAddr], now: &[IpAddr]) -> bool {
    let is_new = |own: &&IpAddr| !own.is_loopback() && !before.contains(*own);
    let mut new = now.iter().filter(is_new);
    new.any(|new| lost.len() == before.len() || lost.iter().any(|lost| lost.is_ipv6() == new.is_ipv6()))
}

/// True if the machine has an address.
fn has(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Flags of IPv6 addresses (`IFA_F_TEMPORARY`), and of those that are not usable yet or any more
/// (`IFA_F_DADFAILED`, `IFA_F_DEPRECATED`, `IFA_F_TENTATIVE`).
const TEMPORARY: u32 = 0x01;
const UNUSABLE: u32 = 0x08 | 0x20 | 0x40;

/// Returns the address that lasts instead of a temporary one (RFC 8981), which connections begin at
/// and which is replaced every day: another one of the interface in the same network, if there is
/// one. `held` is `/proc/net/if_inet6`.
fn lasting(address: IpAddr, held: &str) -> IpAddr {
    let IpAddr::V6(own) = address else { return address };
    // Address, index, length of the prefix, scope, flags, name.
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, index, length, _, flags, _] = words.as_slice() else {
            return None;
        };
        let address = u128::from_str_radix(address, 16).ok()?;
        let number = |word: &str| u32::from_str_radix(word, 16).ok();
        let (index, length, flags) = (number(index)?, number(length)?, number(flags)?);
        let network = address.checked_shr(128_u32.checked_sub(length)?).unwrap_or(0);
        Some((Ipv6Addr::from_bits(address), (index, length, network), flags))
    };
    let held = || held.lines().filter_map(parse);
    let found = held().find(|(held, _, flags)| *held == own && flags & TEMPORARY != 0);
    let other = found.and_then(|(_, place, _)| {
        held().find(|(_, other, flags)| *other == place && flags & (TEMPORARY | UNUSABLE) == 0)
    });
    other.map_or(address, |(other, _, _)| other.into())
}

/// Returns the local address for a target; sends nothing.
fn source(target: &str) -> Option<IpAddr> {
    let mut targets: Vec<SocketAddr> = target.to_socket_addrs().ok()?.collect();
    targets.sort_by_key(SocketAddr::is_ipv6);
    targets.into_iter().find_map(|target| {
        let any: IpAddr = if target.is_ipv6() {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(target).ok()?;
        let held = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        Some(lasting(socket.local_addr().ok()?.ip(), &held))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_chosen_once_there_is_a_way_to_the_server() {
        let choice = |server: &str| Choice::new(&[server.parse().unwrap()], (true, false));
        assert!(choice("https://127.0.0.1:6443").find().is_some(), "the server is here");
        // A name that no server knows (RFC 6761).
        assert_eq!(choice("https://plane.invalid:6443").find(), None);
        assert!(has(Ipv4Addr::LOCALHOST.into()) && !has("192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn an_address_that_lasts_is_taken_instead_of_a_temporary_one() {
        let held = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe800000000000000000000000000007 02 40 20 80     eth0\n\
                    20010db8000000010000000000000009 02 40 00 01     eth0\n\
                    20010db8000000010000000000000008 02 40 00 20     eth0\n\
                    20010db8000000020000000000000007 02 40 00 00     eth0\n\
                    20010db8000000010000000000000006 03 40 00 00     eth1\n\
                    20010db8000000010000000000000007 02 40 00 00     eth0\n\
                    20010db8000000030000000000000009 02 40 00 01     eth0\n";
        for (chosen, lasts) in [
            ("2001:db8:0:1::9", "2001:db8:0:1::7"),
            ("2001:db8:0:2::7", "2001:db8:0:2::7"),
            ("2001:db8:0:3::9", "2001:db8:0:3::9"),
            ("2001:db8::1", "2001:db8::1"),
            ("192.0.2.7", "192.0.2.7"),
        ] {
            let found = lasting(chosen.parse().unwrap(), held);
            assert_eq!(found.to_string(), lasts, "{chosen}");
        }
    }

    #[test]
    fn an_address_is_replaced_by_another_of_its_family() {
        let parse = |text: &str| -> Vec<IpAddr> { text.split_whitespace().map(|own| own.parse().unwrap()).collect() };
        for (lost, before, now, expected) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.8", true),
            ("192.0.2.7", "192.0.2.7", "2001:db8::7", true),
            ("192.0.2.7", "192.0.2.7", "127.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", "127.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", "192.0.2.7", true),
            ("2001:db8::7", "192.0.2.7 2001:db8::7", "192.0.2.7 2001:db8:1::7", true),
            ("2001:db8::7", "192.0.2.7 2001:db8::7", "192.0.2.7", false),
            ("2001:db8::7", "192.0.2.7 2001:db8::7", "192.0.2.8 2001:db8::7", false),
        ] {
            let replaced = are_replaced(&parse(lost), &parse(before), &parse(now));
            assert_eq!(replaced, expected, "{lost} of {before}: {now}");
        }
    }
}
