//! Trimmed copies of Services and EndpointSlices that a node keeps.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use api::cidr::{Cidr, of_bits};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Namespace and name, in the order of such pairs. Clones share the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(String, String)", into = "(String, String)")]
pub struct Name(Arc<str>);

impl Name {
    /// Joins the two by NUL, which neither contains and which sorts before all else.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}\0{name}").into())
    }

    /// Namespace and name.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('\0').unwrap_or_default()
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The name in the namespace.
    pub fn name(&self) -> &str {
        self.parts().1
    }
}

impl From<(String, String)> for Name {
    fn from((namespace, name): (String, String)) -> Self {
        Self::new(&namespace, &name)
    }
}

impl From<Name> for (String, String) {
    fn from(name: Name) -> Self {
        (name.namespace().to_owned(), name.name().to_owned())
    }
}

/// Label with the Service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of EndpointSlices that proxies leave out (`cmd/kube-proxy/app/server.go`).
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label with the name of another proxy.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Condition of a Service whose message is the node that announces its address
/// (`controlplane-plan`'s `load_balancers`).
const ANNOUNCED: &str = "skiff.dev/Announced";
/// Default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: u32 = 10_800;

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// SCTP
    Sctp,
}

impl Protocol {
    /// Parses the protocol; TCP by default.
    pub(crate) fn new(text: Option<&str>) -> Self {
        match text {
            Some("UDP") => Self::Udp,
            Some("SCTP") => Self::Sctp,
            Some(_) | None => Self::Tcp,
        }
    }

    /// The protocol number in the IP header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `spec.clusterIPs`; empty for a headless Service, and for one with an external name.
    pub cluster_ips: Box<[IpAddr]>,
    /// True if its name resolves to its endpoints' addresses.
    pub headless: bool,
    /// `spec.externalName` of the type `ExternalName`.
    pub external_name: Option<Box<str>>,
    /// `spec.ports`
    pub ports: Box<[Port]>,
    /// External access, if it has any.
    pub external: Option<Box<External>>,
    /// Session affinity timeout in seconds.
    pub affinity: Option<NonZeroU32>,
    /// `internalTrafficPolicy: Local`
    pub internal_local: bool,
    /// True if this proxy handles its traffic.
    pub proxied: bool,
    /// `metadata.creationTimestamp` in seconds.
    pub created: i64,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The name, which may be empty.
    pub name: Box<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port at the Service's addresses.
    pub port: u16,
    /// The node port, or 0.
    pub node_port: u16,
}

/// External access to a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// `externalTrafficPolicy: Local`
    pub local: bool,
    /// `spec.externalIPs`
    pub addresses: Vec<IpAddr>,
    /// Addresses of `status.loadBalancer.ingress` with the mode `VIP`.
    pub balancers: Vec<IpAddr>,
    /// `loadBalancerSourceRanges` as first and last address; empty for all sources.
    pub ranges: Vec<(IpAddr, IpAddr)>,
    /// `healthCheckNodePort`
    pub health_port: Option<u16>,
    /// Node that announces the balancers' addresses on its link.
    #[serde(default)]
    pub announcer: Option<Box<str>>,
}

impl Service {
    /// Returns the Service's name and the kept parts.
    pub fn new(service: &core::Service) -> (Name, Self) {
        let spec = service.spec.as_ref();
        let external_name = spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
        let first = spec.and_then(|spec| spec.cluster_ip.as_ref());
        let further = spec
            .and_then(|spec| spec.cluster_ips.as_ref())
            .filter(|all| !all.is_empty());
        let named = further.map_or_else(|| first.into_iter().collect(), |all| all.iter().collect::<Vec<_>>());
        let cluster_ips: Box<[IpAddr]> = if external_name {
            Box::default()
        } else {
            named.into_iter().filter_map(|text| text.parse().ok()).collect()
        };
        let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
        let labels = service.metadata.labels.as_ref();
        let created = service.metadata.creation_timestamp.as_ref();
        let kept = Self {
            proxied: !cluster_ips.is_empty() && labels.is_none_or(|labels| !labels.contains_key(PROXY_NAME)),
            cluster_ips,
            headless: !external_name && first.is_some_and(|first| first == "None"),
            external_name: spec
                .and_then(|spec| spec.external_name.as_deref())
                .filter(|name| external_name && !name.is_empty())
                .map(Into::into),
            ports: ports.filter_map(Port::new).collect(),
            external: External::new(service).map(Box::new),
            affinity: spec.and_then(affinity),
            internal_local: spec.and_then(|spec| spec.internal_traffic_policy.as_deref()) == Some("Local"),
            created: created.map_or(0, |created| created.0.as_second()),
        };
        (name(&service.metadata), kept)
    }

    /// The IP families of its addresses.
    pub fn families(&self) -> impl Iterator<Item = bool> + '_ {
        [false, true]
            .into_iter()
            .filter(|v6| self.cluster_ips.iter().any(|address| address.is_ipv6() == *v6))
    }

    /// True if it can be reached by other addresses than its cluster IPs or through a node port.
    pub(super) fn is_external(&self) -> bool {
        let outer = |external: &External| !external.addresses.is_empty() || !external.balancers.is_empty();
        self.external.as_deref().is_some_and(outer) || self.ports.iter().any(|port| port.node_port != 0)
    }

    /// True if external traffic goes only to the node's own endpoints.
    pub(super) fn external_local(&self) -> bool {
        self.external.as_ref().is_some_and(|external| external.local)
    }
}

impl Port {
    fn new(port: &core::ServicePort) -> Option<Self> {
        Some(Self {
            name: port.name.as_deref().unwrap_or_default().into(),
            protocol: Protocol::new(port.protocol.as_deref()),
            port: u16::try_from(port.port).ok()?,
            node_port: u16::try_from(port.node_port.unwrap_or_default()).ok()?,
        })
    }
}

impl External {
    /// Returns `None` for a Service that is only reached by its cluster IPs. Node ports alone need
    /// this only with a policy.
    fn new(service: &core::Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let type_ = spec.type_.as_deref().unwrap_or_default();
        let ranges = spec.load_balancer_source_ranges.iter().flatten();
        let ranges: Vec<_> = ranges
            .filter_map(|text| text.trim().parse().ok().map(Cidr::ends))
            .collect();
        let status = service.status.as_ref();
        let conditions = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten();
        let mut announced = conditions.filter(|own| own.type_ == ANNOUNCED && own.status == "True");
        let ingress = status.and_then(|status| status.load_balancer.as_ref());
        let ingress = ingress
            .and_then(|balancer| balancer.ingress.as_ref())
            .into_iter()
            .flatten();
        let vips = ingress.filter(|ingress| ingress.ip_mode.as_deref().unwrap_or("VIP") == "VIP");
        let addresses = spec.external_ips.iter().flatten();
        let made = Self {
            // pkg/api/service/util.go: ExternallyAccessible
            local: spec.external_traffic_policy.as_deref() == Some("Local"),
            addresses: addresses.filter_map(|text| text.parse().ok()).collect(),
            balancers: vips.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect(),
            // As upstream, a range of all addresses equals no range, for its family.
            ranges: [false, true]
                .into_iter()
                .flat_map(|v6| of_family(&ranges, v6))
                .collect(),
            health_port: None,
            announcer: announced.next().map(|own| own.message.as_str().into()),
        };
        let checked = (type_ == "LoadBalancer" && made.local)
            .then_some(spec.health_check_node_port)
            .flatten();
        let health_port = checked
            .and_then(|port| u16::try_from(port).ok())
            .filter(|port| *port != 0);
        let made = Self { health_port, ..made };
        (made != Self::default()).then_some(made)
    }
}

fn of_family(ranges: &[(IpAddr, IpAddr)], v6: bool) -> Vec<(IpAddr, IpAddr)> {
    let of_family = ranges.iter().filter(|(first, _)| first.is_ipv6() == v6);
    let mut ranges: Vec<_> = of_family.copied().collect();
    let is_all = |(first, last): &(IpAddr, IpAddr)| first.is_unspecified() && *last == of_bits(v6, u128::MAX);
    if ranges.iter().any(is_all) {
        ranges.clear();
    }
    ranges
}

fn affinity(spec: &core::ServiceSpec) -> Option<NonZeroU32> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let seconds = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
    NonZeroU32::new(seconds.unwrap_or(AFFINITY_SECONDS))
}

/// The name of an object.
pub fn name(metadata: &ObjectMeta) -> Name {
    Name::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Its own name, in the namespace of its Service.
    pub name: Box<str>,
    /// True if only names lead to it.
    #[serde(default)]
    pub headless: bool,
    /// The family of its addresses.
    pub v6: bool,
    /// The ports of each endpoint.
    pub ports: Box<[SlicePort]>,
    /// The endpoints.
    pub endpoints: Box<[Endpoint]>,
}

/// A port of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePort {
    /// The name of the Service's port.
    pub name: Box<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port at the endpoints.
    pub port: u16,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its first address; the others have no meaning.
    pub address: IpAddr,
    /// `conditions.ready`
    pub ready: bool,
    /// `conditions.serving`
    pub serving: bool,
    /// `conditions.terminating`
    pub terminating: bool,
    /// Location of the endpoint.
    pub place: Place,
    /// Hostname and topology hints, which few endpoints have.
    pub details: Option<Box<Details>>,
}

/// Location of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On this node.
    Here,
    /// On another one.
    Elsewhere,
    /// No node is named.
    Unknown,
}

/// Hostname and topology hints of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// `hostname`
    pub hostname: Option<Box<str>>,
    /// `hints.forNodes`
    pub nodes: Box<[String]>,
    /// `hints.forZones`
    pub zones: Box<[String]>,
}

impl Slice {
    /// Returns the name of the slice's Service and the kept parts; `None` for a slice without a
    /// Service, or with host names as addresses.
    pub fn new(slice: &discovery::EndpointSlice, node: &str) -> Option<(Name, Self)> {
        let v6 = match slice.address_type.as_str() {
            "IPv4" => false,
            "IPv6" => true,
            _ => return None,
        };
        let labels = slice.metadata.labels.as_ref()?;
        let service = labels.get(SERVICE_NAME)?;
        let own = name(&slice.metadata);
        let port = |port: &discovery::EndpointPort| {
            Some(SlicePort {
                name: port.name.as_deref().unwrap_or_default().into(),
                protocol: Protocol::new(port.protocol.as_deref()),
                port: u16::try_from(port.port?).ok()?,
            })
        };
        let kept = Self {
            name: own.name().into(),
            headless: labels.contains_key(HEADLESS),
            v6,
            ports: slice.ports.iter().flatten().filter_map(port).collect(),
            endpoints: slice
                .endpoints
                .iter()
                .flatten()
                .filter_map(|endpoint| Endpoint::new(endpoint, v6, node))
                .collect(),
        };
        Some((Name::new(own.namespace(), service), kept))
    }
}

impl Endpoint {
    fn new(endpoint: &discovery::Endpoint, v6: bool, node: &str) -> Option<Self> {
        let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        // An endpoint must not lead to the node's own loopback.
        if address.is_ipv6() != v6 || address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return None;
        }
        let conditions = endpoint.conditions.as_ref();
        let hints = endpoint.hints.clone().unwrap_or_default();
        let hostname = endpoint.hostname.as_deref().filter(|name| !name.is_empty());
        let details = Details {
            hostname: hostname.map(Into::into),
            nodes: hints.for_nodes.into_iter().flatten().map(|node| node.name).collect(),
            zones: hints.for_zones.into_iter().flatten().map(|zone| zone.name).collect(),
        };
        let place = match endpoint.node_name.as_deref() {
            Some(name) if name == node => Place::Here,
            Some(_) => Place::Elsewhere,
            None => Place::Unknown,
        };
        // pkg/proxy/endpointslicecache.go: the defaults of conditions.
        Some(Self {
            address,
            ready: conditions.and_then(|known| known.ready).unwrap_or(true),
            serving: conditions.and_then(|known| known.serving).unwrap_or(true),
            terminating: conditions.and_then(|known| known.terminating).unwrap_or(false),
            place,
            details: (details != Details::default()).then(|| Box::new(details)),
        })
    }
}
