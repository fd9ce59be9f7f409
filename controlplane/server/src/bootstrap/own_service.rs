//! The Service by which pods reach the server, its range, and where the server is, when others can reach it there.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::server::Options;
use crate::services::Range;

/// One of these objects; all are called `kubernetes`.
pub(super) struct Own {
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    /// Empty for those outside of namespaces.
    pub(super) namespace: &'static str,
    pub(super) object: Value,
    /// Whether it is brought up to date where it is there already.
    pub(super) follows: bool,
}

/// The objects' name.
pub(super) const NAME: &str = "kubernetes";

impl Own {
    /// The path of all objects of the kind.
    pub(super) fn path(&self) -> String {
        let base = if self.group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{}/v1", self.group)
        };
        match self.namespace {
            "" => format!("{base}/{}", self.plural),
            namespace => format!("{base}/namespaces/{namespace}/{}", self.plural),
        }
    }

    /// The range that is there with that of the second family, which the server was given since
    /// (`pkg/controlplane/controller/defaultservicecidr`).
    pub(super) fn widened(&self, existing: &[u8]) -> Option<Value> {
        const CIDRS: &str = "/spec/cidrs";
        let mut existing: Value = serde_json::from_slice(existing).ok()?;
        let wanted = self.object.pointer(CIDRS)?.as_array()?;
        let known = existing.pointer_mut(CIDRS)?;
        let is_first =
            matches!((known.as_array()?.as_slice(), wanted.as_slice()), ([known], [first, _]) if known == first);
        if !is_first {
            return None;
        }
        *known = Value::Array(wanted.clone());
        Some(existing)
    }
}

pub(super) fn objects(options: &Options) -> Vec<Own> {
    let ranges = options.service_ranges.iter();
    let cidrs: Vec<String> = ranges.map(|(range, length)| format!("{range}/{length}")).collect();
    let first = options.service_ranges.first().copied().map(Range::new);
    let address = first.map(|first| first.at(1).to_string());
    let v6 = first.is_some_and(Range::is_ipv6);
    let (host, port) = options.address.rsplit_once(':').unwrap_or((&options.address, "6443"));
    let port: u16 = port.parse().unwrap_or(6443);
    let mut all = vec![
        Own {
            group: "networking.k8s.io",
            plural: "servicecidrs",
            namespace: "",
            object: json!({"metadata": {"name": NAME}, "spec": {"cidrs": cidrs}}),
            follows: false,
        },
        Own {
            group: "",
            plural: "services",
            namespace: "default",
            object: json!({
                "metadata": {"name": NAME, "labels": {"component": "apiserver", "provider": "kubernetes"}},
                "spec": {
                    "clusterIP": address, "type": "ClusterIP", "sessionAffinity": "None",
                    "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
                },
            }),
            follows: false,
        },
    ];
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let reachable = host
        .parse::<IpAddr>()
        .is_ok_and(|host| host.is_ipv6() == v6 && !host.is_loopback() && !host.is_unspecified());
    if !reachable {
        return all;
    }
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    all.push(Own {
        group: "",
        plural: "endpoints",
        namespace: "default",
        object: json!({
            "metadata": {"name": NAME, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": [{"ip": host}], "ports": ports}],
        }),
        follows: true,
    });
    all.push(Own {
        group: "discovery.k8s.io",
        plural: "endpointslices",
        namespace: "default",
        object: json!({
            "addressType": if v6 { "IPv6" } else { "IPv4" },
            "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
            "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
            "ports": ports,
        }),
        follows: true,
    });
    all
}
