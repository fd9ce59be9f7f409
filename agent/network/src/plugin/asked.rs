//! Parses requests of a CNI runtime: environment variables, and a configuration on standard input.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::VERSIONS;
use super::answer::{Code, Refusal};
use crate::{Cidr, PortMapping, Ranges};

/// Default directory of the records.
const STATE: &str = "/var/lib/cni/skiff-bridge";
/// Default name of the bridge.
const BRIDGE: &str = "skiffcni0";
/// Maximum number of ports of one container.
const PORTS: usize = 1024;

/// Environment variables of a call.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Environment {
    #[serde(skip)]
    pub(super) command: String,
    #[serde(rename = "containerID")]
    container: String,
    #[serde(skip)]
    netns: String,
    #[serde(rename = "ifname")]
    interface: String,
}

impl Environment {
    pub(super) fn of_process() -> Self {
        let read = |name: &str| std::env::var(name).unwrap_or_default();
        Self {
            command: read("CNI_COMMAND"),
            container: read("CNI_CONTAINERID"),
            netns: read("CNI_NETNS"),
            interface: read("CNI_IFNAME"),
        }
    }

    /// Name of the record, with a hash: the caller's values may be long, and never become a path.
    pub(super) fn key(&self) -> Result<String, Refusal> {
        let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let container = self.container.as_str();
        if !container.starts_with(|letter: char| letter.is_ascii_alphanumeric()) || !container.chars().all(safe) {
            return Err(Refusal::plain(
                Code::Environment,
                format!("CNI_CONTAINERID {container:?} is no identifier"),
            ));
        }
        let whole = format!("{container}/{}", self.interface()?);
        let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let start: String = container.chars().take(40).collect();
        Ok(format!("{start}-{hash:016x}"))
    }

    pub(super) fn interface(&self) -> Result<String, Refusal> {
        let name = self.interface.as_str();
        let unsafe_letter =
            |letter: char| letter == '/' || letter == ':' || letter.is_whitespace() || letter.is_control();
        if name.is_empty() || name.len() > 15 || matches!(name, "." | "..") || name.contains(unsafe_letter) {
            return Err(Refusal::plain(
                Code::Environment,
                format!("CNI_IFNAME {name:?} is no name of an interface"),
            ));
        }
        Ok(name.to_owned())
    }

    pub(super) fn netns(&self) -> Result<PathBuf, Refusal> {
        let path = PathBuf::from(&self.netns);
        if path.is_absolute() {
            return Ok(path);
        }
        Err(Refusal::plain(
            Code::Environment,
            format!("CNI_NETNS {:?} is no absolute path", self.netns),
        ))
    }
}

/// Configuration as received.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    cni_version: String,
    #[serde(default)]
    name: String,
    bridge: Option<String>,
    subnet: Option<Ranges>,
    #[serde(default)]
    direct: Vec<Cidr>,
    data_dir: Option<PathBuf>,
    ipam: Option<Value>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    #[serde(default)]
    prev_result: Value,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<Environment>>,
    #[serde(rename = "cni.dev/attachments")]
    valid_before: Option<Vec<Environment>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<RawPort>,
    ip_ranges: Vec<Vec<RawRange>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    host_port: u16,
    container_port: u16,
    #[serde(default)]
    protocol: String,
    #[serde(default, rename = "hostIP")]
    host_address: String,
}

#[derive(Deserialize)]
struct RawRange {
    subnet: String,
}

/// Validated configuration.
pub(super) struct Asked {
    pub(super) version: String,
    pub(super) bridge: String,
    pub(super) state: PathBuf,
    pub(super) direct: Vec<Cidr>,
    pub(super) ports: Vec<PortMapping>,
    pub(super) valid: Option<Vec<Environment>>,
    ranges: Option<Ranges>,
    previous: Value,
}

impl Asked {
    pub(super) fn parse(input: &str) -> Result<Self, Refusal> {
        let raw: Raw = serde_json::from_str(input)
            .map_err(|error| Refusal::new(Code::Decode, "read the network configuration", &error))?;
        if !VERSIONS.contains(&raw.cni_version.as_str()) {
            let text = format!(
                "CNI version {:?} is not one of {}",
                raw.cni_version,
                VERSIONS.join(", ")
            );
            return Err(Refusal::plain(Code::Version, text));
        }
        let invalid = |text: String| Refusal::plain(Code::Configuration, text);
        if raw
            .ipam
            .as_ref()
            .is_some_and(|ipam| ipam.as_object().is_none_or(|ipam| !ipam.is_empty()))
        {
            return Err(invalid(
                "ipam is not taken: this plugin gives addresses of \"subnet\" by itself".to_owned(),
            ));
        }
        let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let named = raw.name.starts_with(|letter: char| letter.is_ascii_alphanumeric());
        if !named || !raw.name.chars().all(safe) {
            return Err(invalid(format!("network name {:?} is no name", raw.name)));
        }
        let state = raw.data_dir.unwrap_or_else(|| PathBuf::from(STATE)).join(&raw.name);
        if !state.is_absolute() {
            return Err(invalid(format!("dataDir {} is no absolute path", state.display())));
        }
        Ok(Self {
            version: raw.cni_version,
            bridge: raw.bridge.unwrap_or_else(|| BRIDGE.to_owned()),
            state,
            direct: raw.direct,
            ports: ports(raw.runtime_config.port_mappings)?,
            valid: raw.valid.or(raw.valid_before),
            ranges: ranges(&raw.runtime_config.ip_ranges)?.or(raw.subnet),
            previous: raw.prev_result,
        })
    }

    /// Ranges from which addresses are allocated.
    pub(super) fn ranges(&self) -> Result<Ranges, Refusal> {
        let missing = || Refusal::plain(Code::Configuration, "neither subnet nor ipRanges is given".to_owned());
        self.ranges.ok_or_else(missing)
    }

    /// Addresses in the result of an earlier call.
    pub(super) fn previous_addresses(&self) -> Vec<String> {
        let ips = self.previous.get("ips").and_then(Value::as_array);
        let addresses = ips.into_iter().flatten().filter_map(|ip| ip.get("address")?.as_str());
        addresses.map(str::to_owned).collect()
    }
}

/// An address is allocated from the first range of each list.
fn ranges(lists: &[Vec<RawRange>]) -> Result<Option<Ranges>, Refusal> {
    let each: Vec<&str> = lists
        .iter()
        .filter_map(|list| list.first().map(|range| range.subnet.as_str()))
        .collect();
    if each.is_empty() {
        return Ok(None);
    }
    let parsed = each.join(",").parse::<Ranges>();
    parsed
        .map(Some)
        .map_err(|error| Refusal::new(Code::Configuration, "read ipRanges", &error))
}

fn ports(raw: Vec<RawPort>) -> Result<Vec<PortMapping>, Refusal> {
    let invalid = |text: String| Refusal::plain(Code::Configuration, text);
    if raw.len() > PORTS {
        return Err(invalid(format!("{} ports are more than {PORTS}", raw.len())));
    }
    let mut ports = Vec::new();
    for port in raw.into_iter().filter(|port| port.host_port != 0) {
        let host_address: Option<IpAddr> = match port.host_address.as_str() {
            "" => None,
            text => {
                let parsed = text.parse();
                Some(parsed.map_err(|_invalid| invalid(format!("hostIP {text:?} is no address")))?)
            }
        };
        ports.push(PortMapping {
            host_port: port.host_port,
            container_port: port.container_port,
            protocol: if port.protocol.is_empty() {
                "TCP".to_owned()
            } else {
                port.protocol.to_ascii_uppercase()
            },
            host_address,
        });
    }
    Ok(ports)
}
