//! The part of the command line that says how traffic is led to Services. Names and values are those of kube-proxy.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use agent::ServiceProxy;
use network::{Cidr, ParseCidrError};

/// Service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProxyKind {
    /// Tables of nftables of this program's own
    Nftables,
    /// Something else on this machine, or nothing
    None,
}

/// Addresses on which node ports are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodePortAddress {
    Primary,
    Range(Cidr),
}

impl FromStr for NodePortAddress {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Self, ParseCidrError> {
        if text == "primary" {
            return Ok(Self::Primary);
        }
        text.parse().map(Self::Range)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArguments {
    /// What leads pods and the node to Services
    #[arg(long, value_enum, default_value = "nftables")]
    service_proxy: ProxyKind,
    /// Ranges of the node's addresses that have the ports of Services, or `primary` for those of --address; may be repeated.
    /// Otherwise all but those of the loopback
    #[arg(long, value_delimiter = ',')]
    nodeport_addresses: Vec<NodePortAddress>,
    /// Port of all addresses at which load balancers learn whether to send to this node (/healthz, /livez); 0 for none
    #[arg(long, value_name = "PORT", default_value_t = 10256)]
    proxy_healthz_port: u16,
    /// Where the service proxy answers as kube-proxy does (/healthz, /metrics, /proxyMode); with port 0 nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10249")]
    proxy_metrics_bind_address: SocketAddr,
    /// Enforcement of network policies
    #[arg(long, value_enum, default_value = "nftables")]
    network_policies: ProxyKind,
}

impl ProxyArguments {
    /// The name of the tables of network policies, where they are this program's.
    pub(crate) fn network_policies(&self, bridge: &str) -> Option<String> {
        (self.network_policies == ProxyKind::Nftables).then(|| network::policies::table(bridge))
    }

    pub(crate) fn service_proxy(&self, bridge: &str, addresses: &[IpAddr]) -> Option<ServiceProxy> {
        if self.service_proxy == ProxyKind::None {
            return None;
        }
        let own = addresses.iter().map(|address| Cidr {
            address: *address,
            prefix: if address.is_ipv4() { 32 } else { 128 },
        });
        let node_ports = self.nodeport_addresses.iter().flat_map(|place| match place {
            NodePortAddress::Primary => own.clone().collect(),
            NodePortAddress::Range(range) => vec![*range],
        });
        Some(ServiceProxy {
            table: network::services::table(bridge),
            node_ports: node_ports.collect(),
            health_port: Some(self.proxy_healthz_port).filter(|port| *port != 0),
            metrics_address: Some(self.proxy_metrics_bind_address).filter(|address| address.port() != 0),
        })
    }
}
