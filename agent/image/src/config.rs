//! What an operator may configure: registries, and the bounds of everything that is read from outside.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of an image store.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// By registry host, with its port where it has one (`docker.io`, `registry.example:5000`).
    pub registries: BTreeMap<String, Registry>,
    /// Bounds of what is read from registries and archives.
    pub limits: Limits,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// Hosts (`host[:port]`) that are asked before the registry itself, in order. They get no credentials of the registry.
    pub mirrors: Vec<String>,
    /// Speak HTTP without TLS. Loopback registries do so anyway, unless `authorities` are given.
    pub plain_http: bool,
    /// PEM files with additional certificate authorities.
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
    /// Time for a whole pull.
    pub pull_time: Duration,
    /// Time in which a registry must send something.
    pub read_timeout: Duration,
    /// Bytes of a layer that a registry must send in each `pace_time`, so that those that trickle do not keep others waiting.
    pub pace_bytes: u64,
    /// The time for them.
    pub pace_time: Duration,
    /// Tries of one request, the first included.
    pub attempts: u32,
    /// Layers downloaded and unpacked at the same time, over all pulls.
    pub parallel_layers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            manifest_bytes: 4 << 20,
            config_bytes: 1 << 20,
            layers: 256,
            blob_bytes: 16 << 30,
            layer_bytes: 32 << 30,
            entries: 500_000,
            depth: 128,
            directory_bytes: 64 << 20,
            unpack_time: Duration::from_mins(15),
            pull_time: Duration::from_hours(1),
            read_timeout: Duration::from_secs(30),
            pace_bytes: 64 << 10,
            pace_time: Duration::from_mins(1),
            attempts: 4,
            parallel_layers: 4,
        }
    }
}
