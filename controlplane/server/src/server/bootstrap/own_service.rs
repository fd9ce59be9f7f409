//! The Service `kubernetes`, its range, and its endpoints, when the server can be reached from
//! elsewhere.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use serde_json::{Value, json};

use crate::server::shared::Options;

/// Object of the Service `kubernetes`, which all have that name.
pub(super) struct Own {
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    /// Empty for those outside of namespaces.
    pub(super) namespace: &'static str,
    pub(super) object: Value,
    /// True if an existing object is updated.
    pub(super) follows: bool,
}

/// The addresses that an object leads to: those of `Endpoints`, or of an `EndpointSlice`.
pub(super) fn led_to(object: &Value) -> BTreeSet<String> {
    let of = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let parts = of(object, "subsets").into_iter().chain(of(object, "endpoints"));
    let addresses = parts.flat_map(|part| of(&part, "addresses"));
    addresses
        .filter_map(|address| text(Some(&address)).or_else(|| text(address.get("ip"))))
        .collect()
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

/// The objects of a server at `own`, where the servers at the other addresses share the store with
/// it.
pub(super) fn objects(options: &Options, own: Option<IpAddr>, others: &BTreeSet<IpAddr>) -> Vec<Own> {
    let cidrs: Vec<String> = options.service_ranges.iter().map(ToString::to_string).collect();
    let address = options.service_ranges.first().map(|first| first.at(1).address);
    let v6 = is_v6(options);
    let port = options.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port: u16 = port.unwrap_or(6443);
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
    if own.is_none() {
        return all;
    }
    let hosts: BTreeSet<IpAddr> = own.into_iter().chain(others.iter().copied()).collect();
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    all.push(Own {
        group: "",
        plural: "endpoints",
        namespace: "default",
        object: json!({
            "metadata": {"name": NAME, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": hosts.iter().map(|host| json!({"ip": host})).collect::<Vec<_>>(), "ports": ports}],
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
            "endpoints": hosts
                .iter()
                .map(|host| json!({"addresses": [host], "conditions": {"ready": true}}))
                .collect::<Vec<_>>(),
            "ports": ports,
        }),
        follows: true,
    });
    all
}

/// True if the Service has an IPv6 address, and so do its endpoints.
fn is_v6(options: &Options) -> bool {
    options.service_ranges.first().is_some_and(|first| first.is_ipv6())
}

/// Address at which other machines reach this server, if any.
pub(super) fn own_address(options: &Options) -> Option<IpAddr> {
    let host = options
        .address
        .rsplit_once(':')
        .map_or(&*options.address, |(host, _)| host);
    let host: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    let reachable = host.is_ipv6() == is_v6(options) && !host.is_loopback() && !host.is_unspecified();
    reachable.then_some(host)
}

/// True if the machine has an address.
pub(super) fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Address of a server that began at this one: if that was the machine's own and is lost, that of
/// its default route, if there is one. Nothing is sent.
pub(super) fn current(begun: IpAddr, is_local: bool) -> IpAddr {
    if !is_local || is_here(begun) {
        return begun;
    }
    let (any, anywhere): (IpAddr, &str) = if begun.is_ipv6() {
        (Ipv6Addr::UNSPECIFIED.into(), "[2001:db8::1]:9")
    } else {
        (Ipv4Addr::UNSPECIFIED.into(), "192.0.2.1:9")
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(anywhere)?;
        socket.local_addr()
    });
    found.map_or(begun, |found| found.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_of_the_machine_moves_with_it() {
        let [own, other] = ["127.0.0.1", "192.0.2.7"].map(|text| text.parse().unwrap());
        assert_eq!((current(own, true), current(other, false)), (own, other));
        // A machine without a way out keeps it.
        let now = current(other, true);
        assert!(now == other || is_here(now), "{now}");
    }
}
