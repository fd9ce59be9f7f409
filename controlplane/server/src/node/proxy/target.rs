//! Targets of proxied requests.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service};
use rand::seq::IndexedRandom;
use serde::de::DeserializeOwned;

use super::endpoints::ready;
use crate::node::agent;
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target as Named};
use crate::storage;

/// Target of a proxied request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Over TLS.
    pub(super) secure: bool,
    pub(super) behind: Behind,
}

/// Backend of a proxied request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The agent of a node.
    Agent { node: String },
    /// Another port of a node.
    Node { node: String, port: u16 },
    /// A port of a pod.
    Pod { namespace: String, name: String, port: u16 },
    /// No backend: the requested port is invalid.
    Nowhere { because: String },
}

/// Splits `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; `None` for other forms.
fn split(id: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match *parts.as_slice() {
        [name] => ("", name, ""),
        [name, port] => ("", name, port),
        [scheme @ ("" | "http" | "https"), name, port] => (scheme, name, port),
        _ => return None,
    };
    (!name.is_empty()).then_some((scheme, name, port))
}

/// A stored object of the core group, or of that of endpoints.
pub(super) fn find<K: DeserializeOwned>(
    context: &Context,
    plural: &'static str,
    namespace: &str,
    name: &str,
) -> Result<K, Failure> {
    let missing = || Failure::NotFound {
        target: Named {
            resource: GroupResource::new("", plural),
            name: name.to_owned(),
        },
    };
    let row = api::find("", "v1", plural).ok_or_else(missing)?;
    let key = storage::key(row, namespace, name).ok_or_else(missing)?;
    let entry = context.store().get(&key).ok_or_else(missing)?;
    serde_json::from_slice(&entry.bytes).map_err(Failure::internal)
}

impl Target {
    pub(super) fn read(context: &Context) -> Result<Self, Failure> {
        let (id, namespace) = (&context.info.name, &context.info.namespace);
        let kind = context.registration.kind.to_lowercase();
        let invalid = || Failure::bad_request(format!("invalid {kind} request {id:?}"));
        let (scheme, name, port) = split(id).ok_or_else(invalid)?;
        let behind = match kind.as_str() {
            "node" => node(context, name, port)?,
            "pod" => {
                let pod: Pod = find(context, "pods", namespace, name)?;
                check(
                    pod.status
                        .iter()
                        .flat_map(|status| status.pod_ips.iter().flatten())
                        .next()
                        .map(|own| own.ip.as_str()),
                )?;
                let usual = if scheme == "https" { 443 } else { 80 };
                let port = if port.is_empty() {
                    Ok(first_port(&pod).unwrap_or(usual))
                } else {
                    number(port)
                };
                port.map_or_else(
                    |because| Behind::Nowhere { because },
                    |port| Behind::Pod {
                        namespace: namespace.clone(),
                        name: name.to_owned(),
                        port,
                    },
                )
            }
            _ => endpoint(context, id, name, port)?,
        };
        let secure = scheme == "https" && !matches!(behind, Behind::Agent { .. });
        Ok(Self { secure, behind })
    }
}

/// Target on a node: its agent, or another port.
fn node(context: &Context, name: &str, port: &str) -> Result<Behind, Failure> {
    let agent = agent::of_node(context.store(), name)?;
    let node = name.to_owned();
    if port.is_empty() || port == agent.port.to_string() {
        return Ok(Behind::Agent { node });
    }
    check(Some(&agent.address))?;
    Ok(number(port).map_or_else(
        |because| Behind::Nowhere { because },
        |port| Behind::Node { node, port },
    ))
}

/// Parses a numeric port; the error is that of dialing a named one.
fn number(port: &str) -> Result<u16, String> {
    port.parse().map_err(|_error| {
        let digits = port.strip_prefix(['+', '-']).unwrap_or(port);
        if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("dial tcp: address {port}: invalid port")
        } else {
            format!("dial tcp: lookup tcp/{port}: unknown port")
        }
    })
}

/// Rejects addresses whose meaning depends on the machine, such as loopback ones.
fn check(address: Option<&str>) -> Result<(), Failure> {
    let parsed = address.and_then(|address| address.parse::<IpAddr>().ok());
    let allowed = parsed.is_some_and(|address| {
        let own = match address.to_canonical() {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let address = address.to_canonical();
        !(own || address.is_unspecified() || address.is_loopback() || address.is_multicast())
    });
    if allowed {
        return Ok(());
    }
    Err(Failure::bad_request("address not allowed"))
}

fn first_port(pod: &Pod) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let first = containers
        .flat_map(|container| container.ports.iter().flatten())
        .next()?;
    u16::try_from(first.container_port).ok()
}

/// Endpoint of a service, by the name of the port.
fn endpoint(context: &Context, id: &str, name: &str, port: &str) -> Result<Behind, Failure> {
    let namespace = &context.info.namespace;
    let service: Service = find(context, "services", namespace, name)?;
    let mut port_name = port.to_owned();
    if let Ok(number) = port.parse::<i64>() {
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let known = ports
            .filter(|own| i64::from(own.port) == number)
            .map(|own| own.name.clone())
            .next();
        let known = known.ok_or_else(|| Failure::Unavailable {
            message: format!("no service port {number} found for service {name:?}").into(),
        })?;
        port_name = known.unwrap_or_default();
    }
    let found = ready(context.store(), namespace, name, &port_name)?.into_iter();
    let found: Vec<(String, u16)> = found.filter_map(|own| Some((own.pod?, own.port))).collect();
    let chosen = found.choose(&mut rand::rng()).cloned();
    let (pod, port) = chosen.ok_or_else(|| Failure::Unavailable {
        message: format!("no endpoints available for service {id:?}").into(),
    })?;
    Ok(Behind::Pod {
        namespace: namespace.clone(),
        name: pod,
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::{check, number, split};

    #[test]
    fn names_are_read_with_scheme_and_port() {
        assert_eq!(split("web"), Some(("", "web", "")));
        assert_eq!(split("web:80"), Some(("", "web", "80")));
        assert_eq!(split("https:web:443"), Some(("https", "web", "443")));
        assert_eq!(split("http:web:"), Some(("http", "web", "")));
        for id in ["", ":80", "ftp:web:80", "http::80", "http:web:80:1"] {
            assert_eq!(split(id), None, "{id}");
        }
    }

    #[test]
    fn what_is_no_port_is_told_as_go_does() {
        assert_eq!((number("8080"), number("0")), (Ok(8080), Ok(0)));
        for (port, because) in [
            ("99999", "dial tcp: address 99999: invalid port"),
            ("-1", "dial tcp: address -1: invalid port"),
            ("web", "dial tcp: lookup tcp/web: unknown port"),
        ] {
            assert_eq!(number(port), Err(because.to_owned()));
        }
    }

    #[test]
    fn addresses_of_one_machine_alone_are_not_reached() {
        assert!(
            ["10.0.0.1", "fd00::7", "8.8.8.8"]
                .iter()
                .all(|own| check(Some(own)).is_ok())
        );
        for wrong in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "0.0.0.0",
            "",
            "n1",
        ] {
            assert!(check(Some(wrong)).is_err(), "{wrong}");
        }
        assert!(check(None).is_err());
    }
}
