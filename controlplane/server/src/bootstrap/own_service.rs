//! The Service by which pods reach the server, its range, and where the server is, when others can reach it there.

use std::net::Ipv4Addr;

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
}

pub(super) fn objects(options: &Options) -> Vec<Own> {
    let (range, length) = options.service_range;
    let address = Range::new(options.service_range).at(1).to_string();
    let (host, port) = options.address.rsplit_once(':').unwrap_or((&options.address, "6443"));
    let port: u16 = port.parse().unwrap_or(6443);
    let mut all = vec![
        Own {
            group: "networking.k8s.io",
            plural: "servicecidrs",
            namespace: "",
            object: json!({"metadata": {"name": NAME}, "spec": {"cidrs": [format!("{range}/{length}")]}}),
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
    let reachable = host
        .parse::<Ipv4Addr>()
        .is_ok_and(|host| !host.is_loopback() && !host.is_unspecified());
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
            "addressType": "IPv4",
            "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
            "endpoints": [{"addresses": [host], "conditions": {"ready": true}}],
            "ports": ports,
        }),
        follows: true,
    });
    all
}
