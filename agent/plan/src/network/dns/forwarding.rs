//! Name servers that an operator sets for the whole cluster in the `ConfigMap`
//! `kube-system/kube-dns`, as kube-dns read it (`stubDomains`, `upstreamNameservers`).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

const PORT: u16 = 53;

/// Servers for names outside the cluster's domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forwarding {
    /// Stub domains with their servers.
    pub stubs: Vec<(String, Vec<SocketAddr>)>,
    /// Servers for all other names; the machine's if empty.
    pub upstreams: Vec<SocketAddr>,
}

impl Forwarding {
    /// Parses the `data` of the `ConfigMap`. The texts report what of it is ignored.
    pub fn parse(data: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let (mut found, mut faults) = (Self::default(), Vec::new());
        if let Some(stubs) = json::<BTreeMap<String, Vec<String>>>(data, "stubDomains", &mut faults) {
            for (domain, servers) in stubs {
                let servers = addresses("stubDomains", &servers, &mut faults);
                let domain = domain.trim_matches('.').to_lowercase();
                if !servers.is_empty() && !domain.is_empty() {
                    found.stubs.push((domain, servers));
                }
            }
        }
        if let Some(servers) = json::<Vec<String>>(data, "upstreamNameservers", &mut faults) {
            found.upstreams = addresses("upstreamNameservers", &servers, &mut faults);
        }
        (found, faults)
    }
}

fn json<T: serde::de::DeserializeOwned>(
    data: &BTreeMap<String, String>,
    key: &str,
    faults: &mut Vec<String>,
) -> Option<T> {
    let text = data.get(key).filter(|text| !text.trim().is_empty())?;
    serde_json::from_str(text)
        .map_err(|error| faults.push(format!("{key}: {error}")))
        .ok()
}

fn addresses(key: &str, servers: &[String], faults: &mut Vec<String>) -> Vec<SocketAddr> {
    let parsed = servers.iter().filter_map(|server| {
        let own = server.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
        let found = own.or_else(|_no_address| server.parse::<SocketAddr>());
        let wrong = |_| faults.push(format!("{key}: {server:?} is no address of a server"));
        found.map_err(wrong).ok()
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operators_servers_are_read_as_kube_dns_read_them() {
        let read = |stubs: &str, upstreams: &str| {
            let data = [("stubDomains", stubs), ("upstreamNameservers", upstreams)];
            Forwarding::parse(&data.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
        };
        let (found, faults) = read(
            r#"{"Acme.local.": ["1.2.3.4", "[fd00::1]:5353"], "x": ["dns.example"]}"#,
            r#"["8.8.8.8"]"#,
        );
        let servers = ["1.2.3.4:53", "[fd00::1]:5353"].map(|text| text.parse().unwrap());
        assert_eq!(found.stubs, [("acme.local".to_owned(), servers.to_vec())]);
        assert_eq!(found.upstreams, ["8.8.8.8:53".parse().unwrap()]);
        assert_eq!(faults, ["stubDomains: \"dns.example\" is no address of a server"]);
        let (found, faults) = read("{", "");
        assert_eq!(found, Forwarding::default());
        assert!(
            matches!(&*faults, [fault] if fault.starts_with("stubDomains: ")),
            "{faults:?}"
        );
    }
}
