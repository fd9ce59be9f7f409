//! The operator's configuration: registries, and the bounds of everything that is read from
//! outside.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::registry::authorities;

/// Configuration of an image store.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// By registry host, with its port where it has one (`docker.io`, `registry.example:5000`), however that is written.
    pub registries: BTreeMap<String, Registry>,
    /// Bounds of what is read from registries and archives.
    pub limits: Limits,
}

impl Config {
    /// Returns the access to a registry.
    pub(crate) fn registry(&self, host: &str) -> Registry {
        let exact = self.registries.get(host);
        let same = || {
            let mut all = self.registries.iter();
            all.find(|(own, _)| canonical(own) == canonical(host))
        };
        exact
            .or_else(|| same().map(|(_, own)| own))
            .cloned()
            .unwrap_or_default()
    }
}

/// Canonical form of a host: lower case, no trailing dot, brackets around IPv6, no default port of
/// TLS.
fn canonical(host: &str) -> String {
    let name = authorities::name(host);
    let rest = match host.split_once(']') {
        Some((_, rest)) => rest,
        None if name.contains(':') => "",
        None => host.find(':').and_then(|at| host.get(at..)).unwrap_or_default(),
    };
    let port = rest.strip_prefix(':').filter(|port| *port != "443").unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    // An address has several forms of its own.
    let name = name.parse::<IpAddr>().map_or(name, |address| address.to_string());
    format!("{name} {port}")
}

/// Access to a registry.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// Hosts (`host[:port]`, with a path where names of the mirror begin with one) that are asked before the registry itself, in
    /// order. They get credentials of the registry only if they refuse anonymous requests.
    pub mirrors: Vec<String>,
    /// Speak HTTP without TLS. One of this machine's loopback is spoken to so unless `authorities` are given, or it turns out to
    /// speak TLS alone.
    pub plain_http: bool,
    /// PEM files: authorities that are trusted besides the machine's for what this registry needs, token servers and what it
    /// redirects to included; a certificate that names the registry itself is trusted, and signs, for that host alone.
    pub authorities: Vec<PathBuf>,
}

/// Bounds. What exceeds one fails the pull or import with a message that names it.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a manifest or index. containerd and Docker bound it the same way.
    pub manifest_bytes: u64,
    /// Bytes of an image configuration.
    pub config_bytes: u64,
    /// Layers of one image. overlayfs takes 500.
    pub layers: usize,
    /// Bytes of one layer as it is transferred.
    pub blob_bytes: u64,
    /// Bytes of one layer's tar stream after decompression, which bounds what it can write.
    pub layer_bytes: u64,
    /// Entries of one layer's tar stream, and of an imported archive.
    pub entries: u64,
    /// Components of a path.
    pub depth: usize,
    /// Bytes of the paths of one layer's directories, which are remembered to its end.
    pub directory_bytes: u64,
    /// Time for unpacking one layer.
    pub unpack_time: Duration,
    /// Time for a whole pull, but for that in which it only waits for the layers of others.
    pub pull_time: Duration,
    /// Time in which a registry must send something.
    pub read_timeout: Duration,
    /// Bytes of a layer that a registry must send in each `pace_time`, so that those that trickle do not keep others waiting.
    pub pace_bytes: u64,
    /// The time for them.
    pub pace_time: Duration,
    /// Tries of one request, the first included.
    pub attempts: u32,
    /// Layers downloaded and unpacked at the same time, over all pulls. One pull has at most half of them, one registry one more than
    /// that.
    pub parallel_layers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            manifest_bytes: 4 << 20,
            config_bytes: 1 << 20,
            layers: 256,
            // Images with the weights of a model have layers of tens of gigabytes.
            blob_bytes: 64 << 30,
            layer_bytes: 128 << 30,
            entries: 500_000,
            depth: 128,
            directory_bytes: 64 << 20,
            unpack_time: Duration::from_hours(1),
            // A layer of 15 GB at 10 Mbit/s takes over three hours, and a pull that ends before begins with it again.
            pull_time: Duration::from_hours(6),
            read_timeout: Duration::from_secs(30),
            pace_bytes: 1 << 20,
            pace_time: Duration::from_mins(1),
            attempts: 4,
            // Four of them for one registry, three for one pull, as containerd has it.
            parallel_layers: 6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_known_however_its_host_is_written() {
        let known = |given: &str, asked: &str| {
            let own = Registry {
                plain_http: true,
                ..Registry::default()
            };
            let registries = BTreeMap::from([(given.to_owned(), own)]);
            let config = Config {
                registries,
                ..Config::default()
            };
            config.registry(asked).plain_http
        };
        for (given, asked) in [
            ("registry.example:5000", "registry.example:5000"),
            ("Registry.Example:5000", "registry.example:5000"),
            ("registry.example.:5000", "registry.example:5000"),
            ("registry.example:443", "registry.example"),
            ("[FD00:0:0::7]:5000", "[fd00::7]:5000"),
            ("fd00::7", "[fd00::7]"),
        ] {
            assert!(known(given, asked), "{given} {asked}");
        }
        for (given, asked) in [
            ("registry.example", "registry.example:5000"),
            ("registry.example:5000", "registry.example:5001"),
            ("registry.example", "other.registry.example"),
            ("[fd00::7]:5000", "[fd00::7]"),
        ] {
            assert!(!known(given, asked), "{given} {asked}");
        }
    }
}
