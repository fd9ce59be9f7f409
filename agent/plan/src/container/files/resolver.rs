//! The text of `/etc/resolv.conf`, within the limits of resolvers.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodDNSConfig;

/// Maximum numbers of name servers, search domains, and characters of all domains with their
/// separators.
const MOST: (usize, usize, usize) = (3, 32, 2048);
/// Maximum length of a domain: some resolvers abort on longer ones.
const LONGEST: usize = 253;

/// The cluster's DNS settings.
#[derive(Clone, Debug, Default)]
pub struct ClusterDns {
    /// Addresses of the cluster's name servers; empty if it has none.
    pub servers: Vec<String>,
    /// The cluster's domain.
    pub domain: String,
}

/// A pod's `resolv.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The text of `/etc/resolv.conf`.
    pub text: String,
    /// Texts of the events about omitted entries, in upstream's words.
    pub omitted: Vec<String>,
}

/// True if a text names a name server that other machines can query: one that is not the machine's
/// own loopback address.
pub fn asks_others(text: &str) -> bool {
    Resolver::parse(text).servers.iter().any(|server| !is_loopback(server))
}

/// Returns the addresses of a text's name servers, each with its zone: the interface of a link-local
/// one (`fe80::1%eth0`), else nothing.
pub fn servers(text: &str) -> Vec<(IpAddr, String)> {
    let servers = Resolver::parse(text).servers;
    servers.iter().filter_map(|server| address(server)).collect()
}

fn address(server: &str) -> Option<(IpAddr, String)> {
    let (address, zone) = server.split_once('%').unwrap_or((server, ""));
    Some((address.parse().ok()?, zone.to_owned()))
}

fn is_loopback(server: &str) -> bool {
    address(server).is_some_and(|(address, _)| address.is_loopback())
}

/// Returns `/etc/resolv.conf` of a pod. `node` is the node's own text.
pub fn resolv_conf(
    policy: &str,
    config: Option<&PodDNSConfig>,
    namespace: &str,
    host_network: bool,
    cluster: &ClusterDns,
    node: &str,
) -> Resolution {
    let clustered = match policy {
        "ClusterFirst" => !host_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let mut parsed = if policy == "None" {
        Resolver::default()
    } else {
        Resolver::parse(node)
    };
    if clustered && !cluster.servers.is_empty() {
        let domain = &cluster.domain;
        let mut search = vec![
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.clone(),
        ];
        search.append(&mut parsed.search);
        parsed = Resolver {
            servers: cluster.servers.clone(),
            search,
            options: vec!["ndots:5".to_owned()],
        };
    }
    if let Some(config) = config {
        parsed.servers.extend(config.nameservers.iter().flatten().cloned());
        parsed.servers = unique(parsed.servers);
        parsed.search.extend(config.searches.iter().flatten().cloned());
        for option in config.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            parsed.set(match option.value.as_deref() {
                None | Some("") => name,
                Some(value) => format!("{name}:{value}"),
            });
        }
    }
    parsed.search = unique(parsed.search);
    let omitted = [parsed.limit_servers(), parsed.limit_search()];
    Resolution {
        text: parsed.text(),
        omitted: omitted.into_iter().flatten().collect(),
    }
}

/// Removes duplicates.
fn unique(all: Vec<String>) -> Vec<String> {
    let mut seen = Vec::new();
    for text in all {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

#[derive(Default)]
struct Resolver {
    servers: Vec<String>,
    search: Vec<String>,
    options: Vec<String>,
}

impl Resolver {
    fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => resolver.servers.extend(words.next()),
                Some("search") => {
                    let words = words.filter(|domain| domain != ".");
                    resolver.search = words.map(|domain| domain.trim_end_matches('.').to_owned()).collect();
                }
                Some("options") => words.for_each(|option| resolver.set(option)),
                Some(_) | None => {}
            }
        }
        resolver
    }

    /// Sets an option; an earlier one with the same name is dropped.
    fn set(&mut self, option: String) {
        let name = |option: &str| option.split(':').next().map(str::to_owned);
        let own = name(&option);
        self.options.retain(|known| name(known) != own);
        self.options.push(option);
    }

    /// Drops excess name servers from the end, and returns the event's text.
    fn limit_servers(&mut self) -> Option<String> {
        if self.servers.len() <= MOST.0 {
            return None;
        }
        self.servers.truncate(MOST.0);
        Some(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            self.servers.join(" ")
        ))
    }

    /// Same for search domains, and for those that are too long.
    fn limit_search(&mut self) -> Option<String> {
        let before = self.search.len();
        self.search.truncate(MOST.1);
        self.search.retain(|domain| domain.len() <= LONGEST);
        while self.search.join(" ").len() > MOST.2 {
            self.search.pop();
        }
        (self.search.len() < before).then(|| {
            format!(
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
                self.search.join(" ")
            )
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if !self.search.is_empty() {
            text.extend([format!("search {}\n", self.search.join(" "))]);
        }
        for server in &self.servers {
            text.extend([format!("nameserver {server}\n")]);
        }
        if !self.options.is_empty() {
            text.extend([format!("options {}\n", self.options.join(" "))]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use k8s_openapi::api::core::v1::PodDNSConfigOption;

    #[test]
    fn cluster_first_puts_the_cluster_before_the_node() {
        let cluster = ClusterDns {
            servers: vec!["10.96.0.10".into()],
            domain: "cluster.local".into(),
        };
        expect![[r"
            search default.svc.cluster.local svc.cluster.local cluster.local example.org
            nameserver 10.96.0.10
            options ndots:5
        "]]
        .assert_eq(
            &resolv_conf(
                "ClusterFirst",
                None,
                "default",
                false,
                &cluster,
                "nameserver 1.1.1.1\nsearch example.org\n",
            )
            .text,
        );
        expect!["nameserver 1.1.1.1\n"].assert_eq(
            &resolv_conf(
                "ClusterFirst",
                None,
                "default",
                false,
                &ClusterDns::default(),
                "nameserver 1.1.1.1\n",
            )
            .text,
        );
    }

    #[test]
    fn a_name_server_may_have_a_zone() {
        let text = "nameserver fe80::1%eth0\nnameserver 192.0.2.1\nnameserver fe80::2%3\nnameserver none%eth0\n";
        let found: Vec<String> = servers(text)
            .iter()
            .map(|(address, zone)| format!("{address} {zone}"))
            .collect();
        assert_eq!(found, ["fe80::1 eth0", "192.0.2.1 ", "fe80::2 3"]);
    }

    #[test]
    fn options_accumulate_by_name() {
        let option = |name: &str, value: Option<&str>| PodDNSConfigOption {
            name: Some(name.to_owned()),
            value: value.map(str::to_owned),
        };
        let config = PodDNSConfig {
            options: Some(vec![
                option("ndots", Some("2")),
                option("use-vc", Some("")),
                option("edns0", None),
            ]),
            ..PodDNSConfig::default()
        };
        let node = "options ndots:1 rotate\noptions timeout:3\n";
        let text = |config| resolv_conf("Default", config, "default", false, &ClusterDns::default(), node).text;
        assert_eq!(text(None), "options ndots:1 rotate timeout:3\n");
        assert_eq!(text(Some(&config)), "options rotate timeout:3 ndots:2 use-vc edns0\n");
    }

    /// Resolution and event texts for a pod with only these name servers and search domains.
    fn limited(servers: &[&str], search: &[String]) -> (Vec<String>, Vec<String>) {
        let config = PodDNSConfig {
            nameservers: Some(servers.iter().map(|server| (*server).to_owned()).collect()),
            searches: Some(search.to_vec()),
            options: None,
        };
        let Resolution { text, omitted } =
            resolv_conf("None", Some(&config), "default", false, &ClusterDns::default(), "");
        (text.lines().map(str::to_owned).collect(), omitted)
    }

    #[test]
    fn no_more_name_servers_than_resolvers_ask() {
        let (text, omitted) = limited(&["1.1.1.1", "2.2.2.2", "1.1.1.1", "3.3.3.3"], &[]);
        assert_eq!(text, ["nameserver 1.1.1.1", "nameserver 2.2.2.2", "nameserver 3.3.3.3"]);
        assert_eq!(omitted, [""; 0], "each counts once");
        let (text, omitted) = limited(&["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"], &[]);
        assert_eq!(text, ["nameserver 1.1.1.1", "nameserver 2.2.2.2", "nameserver 3.3.3.3"]);
        assert_eq!(
            omitted,
            [
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 \
                 2.2.2.2 3.3.3.3"
            ]
        );
    }

    #[test]
    fn no_more_domains_than_resolvers_bear() {
        let begin =
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is:";
        let applied = |domains: &[String]| -> usize {
            let (text, omitted) = limited(&[], domains);
            let line = text
                .first()
                .and_then(|line| line.strip_prefix("search "))
                .unwrap_or_default();
            let left = line.split_whitespace().count();
            let told: Vec<String> = (left < domains.len())
                .then(|| format!("{begin} {line}"))
                .into_iter()
                .collect();
            assert_eq!(omitted, told);
            left
        };
        let numbered = |count: usize, length: usize| -> Vec<String> {
            (0..count).map(|number| format!("{number:0>length$}")).collect()
        };
        assert_eq!(applied(&numbered(32, 63)), 32, "2047 characters");
        assert_eq!(applied(&numbered(33, 2)), 32);
        assert_eq!(applied(&numbered(32, 64)), 31, "2079 characters");
        assert_eq!(applied(&numbered(9, 253)), 8);
        assert_eq!(
            applied(&[numbered(1, 254), numbered(2, 3)].concat()),
            2,
            "one is too long"
        );
    }
}
