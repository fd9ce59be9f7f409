//! Subresources of a kind: the kinds of their bodies and their verbs.

use api::Registration;
use api::kind::Subresource;

/// A subresource as discovery shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

/// The subresources of a kind, sorted by name.
pub(crate) fn of(registration: &Registration) -> Vec<Described> {
    let mut all: Vec<Described> = registration
        .subresources
        .iter()
        .map(|subresource| describe(registration, *subresource))
        .collect();
    all.sort_by_key(|subresource| subresource.name);
    all
}

/// The subresource of that name.
pub(crate) fn find(registration: &Registration, name: &str) -> Option<Subresource> {
    registration
        .subresources
        .iter()
        .copied()
        .find(|subresource| subresource.name() == name)
}

fn proxy_options(registration: &Registration) -> &'static str {
    match registration.kind {
        "Node" => "NodeProxyOptions",
        "Service" => "ServiceProxyOptions",
        _ => "PodProxyOptions",
    }
}

fn describe(registration: &Registration, subresource: Subresource) -> Described {
    let (group, version, kind, verbs): (_, _, _, &[&str]) = match subresource {
        Subresource::Status | Subresource::EphemeralContainers | Subresource::Resize | Subresource::Approval => (
            registration.group,
            registration.version,
            registration.kind,
            &["get", "patch", "update"],
        ),
        Subresource::Scale => ("autoscaling", "v1", "Scale", &["get", "patch", "update"]),
        Subresource::Binding => ("", "v1", "Binding", &["create"]),
        Subresource::Eviction => ("policy", "v1", "Eviction", &["create"]),
        Subresource::Log => (registration.group, registration.version, registration.kind, &["get"]),
        Subresource::Token => ("authentication.k8s.io", "v1", "TokenRequest", &["create"]),
        Subresource::Finalize => (registration.group, registration.version, registration.kind, &["update"]),
        Subresource::Exec => ("", "v1", "PodExecOptions", &["create", "get"]),
        Subresource::Attach => ("", "v1", "PodAttachOptions", &["create", "get"]),
        Subresource::PortForward => ("", "v1", "PodPortForwardOptions", &["create", "get"]),
        Subresource::Proxy => (
            "",
            "v1",
            proxy_options(registration),
            &["create", "delete", "get", "patch", "update"],
        ),
    };
    Described {
        name: subresource.name(),
        group,
        version,
        kind,
        verbs,
    }
}
