//! What a node makes its pods with.

use clap::Args;
use serde::{Deserialize, Serialize};

/// What the node makes its pods with, how many, and where their images come from.
#[derive(Args, Default, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Backends {
    /// What makes the containers [default: embedded]
    #[arg(long, value_name = "NAME", value_parser = ["embedded", "containerd"])]
    pub(crate) runtime: Option<String>,
    /// containerd's socket [default: /run/containerd/containerd.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) containerd_address: Option<String>,
    /// The containerd namespace of the node's containers [default: skiff]
    #[arg(long, value_name = "NAME")]
    pub(crate) containerd_namespace: Option<String>,
    /// containerd's snapshotter for images and containers [default: overlayfs]
    #[arg(long, value_name = "NAME")]
    pub(crate) containerd_snapshotter: Option<String>,
    /// What connects the pods [default: bridge]
    #[arg(long, value_name = "NAME", value_parser = ["bridge", "cni"])]
    pub(crate) network: Option<String>,
    /// Directory of the CNI configurations [default: /etc/cni/net.d]
    #[arg(long, value_name = "PATH")]
    pub(crate) cni_conf_dir: Option<String>,
    /// Directories of the CNI plugins, separated by colons [default: /opt/cni/bin:/usr/lib/cni]
    #[arg(long, value_name = "PATH")]
    pub(crate) cni_bin_dir: Option<String>,
    /// The routes that the built-in network makes to the pods of other nodes [default: auto]
    #[arg(long, value_name = "NAME", value_parser = ["auto", "direct", "tunnel", "none"])]
    pub(crate) node_routes: Option<String>,
    /// Where containers' logs lie, linked from the directory `containers` beside it [default: /var/log/pods for the machine's own
    /// node, within its directory for those of another --state-dir]
    #[arg(long, value_name = "PATH")]
    pub(crate) pod_logs_dir: Option<String>,
    /// What stands for a kubelet's --root-dir, where plugins register [default: /var/lib/kubelet for the machine's own node, within
    /// its directory for those of another --state-dir]
    #[arg(long, value_name = "PATH")]
    pub(crate) kubelet_dir: Option<String>,
    /// How many pods the node takes [default: 110]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_pods: Option<u32>,
    /// Ask this host before the registry; may be repeated
    #[arg(long, value_name = "REGISTRY=HOST[/PATH]")]
    pub(crate) registry_mirror: Vec<String>,
    /// Registry that speaks HTTP without TLS; may be repeated
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) registry_plain_http: Vec<String>,
    /// Trust these certificates (PEM) for pulls from this registry or mirror alone; may be repeated
    ///
    /// REGISTRY is its host, with the port where names of images have one. An authority in the file is trusted besides
    /// those of the machine: for the registry, for the server that gives its tokens, and for where it redirects to. A
    /// certificate that names the host itself, signed by whomever, is trusted for that host and no other.
    #[arg(long, value_name = "REGISTRY=FILE", value_parser = authority)]
    pub(crate) registry_ca: Vec<String>,
}

/// `REGISTRY=FILE` with the file's whole path: the agent runs somewhere else.
fn authority(text: &str) -> Result<String, String> {
    let (registry, file) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not REGISTRY=FILE"))?;
    let file = std::path::absolute(file).map_err(|error| error.to_string())?;
    Ok(format!("{registry}={}", file.display()))
}

impl Backends {
    /// These, and where they say nothing the others.
    pub(crate) fn or(&self, others: &Self) -> Self {
        let first = |own: &Option<String>, other: &Option<String>| own.clone().or_else(|| other.clone());
        let all = |own: &Vec<String>, other: &Vec<String>| if own.is_empty() { other.clone() } else { own.clone() };
        Self {
            runtime: first(&self.runtime, &others.runtime),
            containerd_address: first(&self.containerd_address, &others.containerd_address),
            containerd_namespace: first(&self.containerd_namespace, &others.containerd_namespace),
            containerd_snapshotter: first(&self.containerd_snapshotter, &others.containerd_snapshotter),
            network: first(&self.network, &others.network),
            cni_conf_dir: first(&self.cni_conf_dir, &others.cni_conf_dir),
            cni_bin_dir: first(&self.cni_bin_dir, &others.cni_bin_dir),
            node_routes: first(&self.node_routes, &others.node_routes),
            pod_logs_dir: first(&self.pod_logs_dir, &others.pod_logs_dir),
            kubelet_dir: first(&self.kubelet_dir, &others.kubelet_dir),
            max_pods: self.max_pods.or(others.max_pods),
            registry_mirror: all(&self.registry_mirror, &others.registry_mirror),
            registry_plain_http: all(&self.registry_plain_http, &others.registry_plain_http),
            registry_ca: all(&self.registry_ca, &others.registry_ca),
        }
    }

    /// What makes the containers.
    pub(crate) fn engine(&self) -> &str {
        self.runtime.as_deref().unwrap_or("embedded")
    }

    /// The agent's flags for them.
    pub(crate) fn flags(&self) -> impl Iterator<Item = String> {
        let pairs = [
            ("--runtime", &self.runtime),
            ("--containerd-address", &self.containerd_address),
            ("--containerd-namespace", &self.containerd_namespace),
            ("--containerd-snapshotter", &self.containerd_snapshotter),
            ("--network", &self.network),
            ("--cni-conf-dir", &self.cni_conf_dir),
            ("--cni-bin-dir", &self.cni_bin_dir),
            ("--node-routes", &self.node_routes),
            ("--pod-logs-dir", &self.pod_logs_dir),
            ("--kubelet-dir", &self.kubelet_dir),
        ];
        let lists = [
            ("--registry-mirror", &self.registry_mirror),
            ("--registry-plain-http", &self.registry_plain_http),
            ("--registry-ca", &self.registry_ca),
        ];
        let lists = lists
            .into_iter()
            .flat_map(|(flag, values)| values.iter().map(move |value| format!("{flag}={value}")));
        pairs
            .into_iter()
            .filter_map(|(flag, value)| Some(format!("{flag}={}", value.as_ref()?)))
            .chain(self.max_pods.map(|number| format!("--max-pods={number}")))
            .chain(lists)
    }
}
