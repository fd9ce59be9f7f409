//! Redirects of registries and token servers, and the addresses to which they must not send this
//! node (SSRF).
//!
//! containerd follows every redirect: a user who names a registry could make the node request its
//! own loopback services, or a cloud's metadata server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::LOCATION;
use reqwest::{Response, StatusCode, Url};

use crate::registry::authorities::name;

/// Maximum number of redirects, as in Go's client (`net/http/client.go`).
const LONGEST: usize = 10;

/// A redirect is not followed.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Too many redirects.
    #[error("stopped after {LONGEST} redirects")]
    TooMany,
    /// `Location` is missing or not an HTTP URL.
    #[error("{0} response has no Location that can be asked")]
    Location(StatusCode),
    /// The target is a loopback or link-local address, or a metadata server.
    #[error("{0} is not asked on behalf of {1}: the address means something to this machine alone")]
    Place(String, String),
}

/// Addresses of cloud metadata servers that are not link-local.
const METADATA: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Variables that configure proxies, read by the client as well.
const PROXIES: [&str; 6] = [
    "ALL_PROXY",
    "all_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
];

/// Hosts to which a registry may redirect: itself at any address, others at public or private
/// addresses.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Registry host, in lower case.
    own: String,
    /// True if the registry itself is on this node's loopback.
    loopback: bool,
    /// Hosts of the proxies that the environment configures, in lower case.
    proxies: Vec<String>,
}

impl Reach {
    /// `variable` reads the process's environment.
    pub(crate) fn new(host: &str, loopback: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let proxies = PROXIES.iter().filter_map(|name| variable(name));
        let proxies = proxies.map(|proxy| {
            let place = proxy.split_once("://").map_or(proxy.as_str(), |(_, place)| place);
            let place = place.split('/').next().unwrap_or_default();
            let host = place.rsplit('@').next().unwrap_or_default();
            name(host).to_ascii_lowercase()
        });
        Self {
            own: name(host).to_ascii_lowercase(),
            loopback,
            proxies: proxies.collect(),
        }
    }

    /// Refuses addresses. A proxy's name, which may be one of the loopback, is no target either.
    pub(crate) fn check(&self, url: &Url) -> Result<(), RedirectError> {
        let host = url.host_str().unwrap_or_default();
        if self.is_proxy(host) && !self.loopback && !name(host).eq_ignore_ascii_case(&self.own) {
            return Err(self.refused(host));
        }
        let address = host.trim_matches(['[', ']']).parse();
        if address.is_ok_and(|address| !self.allows(host, address)) {
            return Err(self.refused(host));
        }
        Ok(())
    }

    fn is_proxy(&self, host: &str) -> bool {
        self.proxies.iter().any(|proxy| name(host).eq_ignore_ascii_case(proxy))
    }

    fn allows(&self, host: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let machines_own = link_local || address.is_unspecified() || METADATA.contains(&address);
        name(host).eq_ignore_ascii_case(&self.own) || !machines_own && (self.loopback || !address.is_loopback())
    }

    fn refused(&self, host: &str) -> RedirectError {
        RedirectError::Place(host.to_owned(), self.own.clone())
    }
}

/// DNS resolver that refuses forbidden addresses, except those of proxies: the client connects to
/// them instead of to the target.
impl Resolve for Reach {
    fn resolve(&self, asked: Name) -> Resolving {
        let reach = self.clone();
        Box::pin(async move {
            let host = asked.as_str();
            let found = tokio::net::lookup_host((host, 0)).await?;
            let allowed = found.filter(|found| reach.is_proxy(host) || reach.allows(host, found.ip()));
            let allowed: Vec<SocketAddr> = allowed.collect();
            if allowed.is_empty() {
                return Err(reach.refused(host).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Number of redirects of one request.
#[derive(Default)]
pub(crate) struct Redirects(usize);

impl Redirects {
    /// Target URL of a redirect.
    pub(crate) fn next(&mut self, response: &Response) -> Result<Option<Url>, RedirectError> {
        let status = response.status();
        if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| response.url().join(location).ok());
        let next = next.filter(|next| ["http", "https"].contains(&next.scheme()));
        let next = next.ok_or(RedirectError::Location(status))?;
        self.0 += 1;
        if self.0 > LONGEST {
            return Err(RedirectError::TooMany);
        }
        Ok(Some(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(host: &str, loopback: bool) -> Reach {
        Reach::new(host, loopback, |_unset| None)
    }

    #[tokio::test]
    async fn a_proxy_on_the_loopback_is_reached_and_no_target() {
        for proxy in [
            "http://localhost:3128",
            "LOCALHOST:3128",
            "http://user:p@localhost:3128/",
        ] {
            let reach = Reach::new("registry.example", false, |name| {
                (name == "HTTPS_PROXY").then(|| proxy.to_owned())
            });
            assert!(reach.resolve("localhost".parse().unwrap()).await.is_ok(), "{proxy}");
            let target = reach.check(&"http://localhost:10250/pods".parse().unwrap());
            assert!(target.is_err(), "{proxy}");
        }
    }

    #[tokio::test]
    async fn attack_28_no_registry_leads_to_what_is_this_machines_alone() {
        let far = reach("Registry.example:5000", false);
        let near = reach("localhost:5000", true);
        let allowed = |reach: &Reach, host: &str| reach.check(&format!("http://{host}/x").parse().unwrap()).is_ok();
        for host in ["10.0.0.7", "[fd00::7]", "8.8.8.8", "storage.example"] {
            assert!(allowed(&far, host) && allowed(&near, host), "{host}");
        }
        for host in ["127.0.0.1:5000", "127.1", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(!allowed(&far, host) && allowed(&near, host), "{host}");
        }
        for host in [
            "169.254.169.254",
            "[::ffff:a9fe:a9fe]",
            "[fe80::1]",
            "0.0.0.0",
            "[::]",
            "100.100.100.200",
            "[fd00:ec2::254]",
        ] {
            assert!(!allowed(&far, host) && !allowed(&near, host), "{host}");
        }
        // The address by which the registry was named is allowed.
        assert!(allowed(&reach("169.254.7.7", false), "169.254.7.7:5000"));
        let resolved = |reach: &Reach| reach.resolve("localhost".parse().unwrap());
        assert!(resolved(&near).await.is_ok());
        let refused = resolved(&far).await.err().unwrap().to_string();
        assert!(
            refused.starts_with("localhost is not asked on behalf of registry.example"),
            "{refused}"
        );
    }
}
