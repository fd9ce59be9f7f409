//! Network configuration lists, as in the CNI specification. No I/O.

use agent_plan::network::bandwidth::Bandwidth;
use serde_json::{Map, Value, json};

use crate::{PortMapping, Ranges};

/// Supported versions of the CNI specification, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The file is not a usable configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it is not JSON: {0}")]
    Json(String),
    #[error("{0}")]
    Shape(&'static str),
    #[error("its version {0:?} is none of {all}", all = VERSIONS.join(", "))]
    Version(String),
    #[error("plugin type {0:?} is no name of a program")]
    Type(String),
}

/// Network configuration list: its plugins in the order of ADD.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct List {
    pub(super) name: String,
    pub(super) version: &'static str,
    pub(super) check: bool,
    pub(super) collect: bool,
    pub(super) plugins: Vec<Map<String, Value>>,
}

/// Capability arguments (`runtimeConfig`), for plugins that declare the capabilities.
#[derive(Clone, Debug, Default)]
pub(super) struct Capabilities<'a> {
    pub(super) ports: &'a [PortMapping],
    pub(super) ranges: Option<Ranges>,
    pub(super) bandwidth: Bandwidth,
}

/// Plugins whose pods' packets pass by the node that they are on.
const BYPASSING: [&str; 5] = ["macvlan", "ipvlan", "vlan", "host-device", "sriov"];

impl List {
    /// True if pods of this list do not reach addresses of their node's loopback.
    pub(super) fn bypasses_node(&self) -> bool {
        let first = self.plugins.first().and_then(|plugin| plugin.get("type"));
        first
            .and_then(Value::as_str)
            .is_some_and(|kind| BYPASSING.contains(&kind))
    }

    /// Reads a `.conflist`, or a `.conf` of one plugin.
    pub(super) fn parse(text: &[u8]) -> Result<Self, Unusable> {
        let parsed: Value = serde_json::from_slice(text).map_err(|error| Unusable::Json(error.to_string()))?;
        Self::of(&parsed)
    }

    pub(super) fn of(parsed: &Value) -> Result<Self, Unusable> {
        let whole = parsed.as_object().ok_or(Unusable::Shape("it is no object"))?;
        let name = text(whole, "name").ok_or(Unusable::Shape("it has no name"))?;
        if !is_name(name) {
            return Err(Unusable::Shape("its name has letters that no network's name has"));
        }
        let plugins = match whole.get("plugins") {
            Some(Value::Array(plugins)) => {
                let objects = plugins.iter().map(|plugin| plugin.as_object().cloned());
                objects
                    .collect::<Option<Vec<_>>>()
                    .ok_or(Unusable::Shape("a plugin is no object"))?
            }
            Some(_) => return Err(Unusable::Shape("its plugins are no list")),
            None => vec![whole.clone()],
        };
        if plugins.is_empty() {
            return Err(Unusable::Shape("it has no plugins"));
        }
        for plugin in &plugins {
            let kind = text(plugin, "type").ok_or(Unusable::Shape("a plugin has no type"))?;
            if !is_name(kind) {
                return Err(Unusable::Type(kind.to_owned()));
            }
        }
        let flag = |key: &str| {
            whole
                .get(key)
                .is_some_and(|value| *value == json!(true) || *value == json!("true"))
        };
        Ok(Self {
            name: name.to_owned(),
            version: version(whole)?,
            check: !flag("disableCheck"),
            collect: !flag("disableGC"),
            plugins,
        })
    }

    /// Serializes the list so that it can be parsed again.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "cniVersion": self.version, "name": self.name, "disableCheck": !self.check, "disableGC": !self.collect,
            "plugins": self.plugins,
        })
    }

    /// True if this version of the specification includes the features of the given version.
    pub(super) fn since(&self, version: &str) -> bool {
        let rank = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
        rank(self.version) >= rank(version)
    }

    /// Configuration for a plugin's standard input.
    pub(super) fn request(
        &self,
        plugin: &Map<String, Value>,
        capabilities: &Capabilities<'_>,
        previous: Option<&Value>,
    ) -> Value {
        let mut request = plugin.clone();
        request.remove("plugins");
        request.insert("cniVersion".to_owned(), self.version.into());
        request.insert("name".to_owned(), self.name.clone().into());
        let runtime = capabilities.of(plugin);
        if !runtime.is_empty() {
            request.insert("runtimeConfig".to_owned(), runtime.into());
        }
        if let Some(previous) = previous {
            request.insert("prevResult".to_owned(), previous.clone());
        }
        Value::Object(request)
    }
}

impl Capabilities<'_> {
    fn of(&self, plugin: &Map<String, Value>) -> Map<String, Value> {
        let wanted = |name: &str| plugin.get("capabilities").and_then(|all| all.get(name)) == Some(&json!(true));
        let mut given = Map::new();
        if wanted("portMappings") && !self.ports.is_empty() {
            let ports: Vec<Value> = self.ports.iter().map(port).collect();
            given.insert("portMappings".to_owned(), ports.into());
        }
        if let Some(ranges) = self.ranges.filter(|_| wanted("ipRanges")) {
            let each = ranges.iter().map(|range| json!([{"subnet": range.network_range()}]));
            given.insert("ipRanges".to_owned(), each.collect());
        }
        if wanted("bandwidth") && self.bandwidth != Bandwidth::default() {
            given.insert("bandwidth".to_owned(), limits(self.bandwidth));
        }
        given
    }
}

fn port(mapping: &PortMapping) -> Value {
    let mut port = json!({
        "hostPort": mapping.host_port, "containerPort": mapping.container_port,
        "protocol": mapping.protocol.to_lowercase(),
    });
    if let (Some(address), Value::Object(port)) = (mapping.host_address, &mut port) {
        port.insert("hostIP".to_owned(), address.to_string().into());
    }
    port
}

/// Rates with bursts of any size (containerd's `toCNIBandWidth`, `internal/cri/server/sandbox_run.go`).
fn limits(bandwidth: Bandwidth) -> Value {
    let mut limits = Map::new();
    for (way, rate) in [("ingress", bandwidth.ingress), ("egress", bandwidth.egress)] {
        if let Some(rate) = rate {
            limits.insert(format!("{way}Rate"), rate.into());
            limits.insert(format!("{way}Burst"), u32::MAX.into());
        }
    }
    limits.into()
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key)?.as_str().filter(|text| !text.is_empty())
}

/// Highest supported version of those that the list declares.
fn version(list: &Map<String, Value>) -> Result<&'static str, Unusable> {
    let one = text(list, "cniVersion").into_iter();
    let several = list.get("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let offered: Vec<&str> = one.chain(several.filter_map(Value::as_str)).collect();
    let known = VERSIONS
        .iter()
        .rev()
        .find(|version| offered.contains(*version))
        .copied();
    known.ok_or_else(|| Unusable::Version(offered.join(", ")))
}

/// Validates names of networks and plugins, which become parts of paths.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    name.len() <= 128 && name.bytes().all(plain) && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Bandwidth, Capabilities, List};
    use crate::PortMapping;

    fn parsed(text: &serde_json::Value) -> String {
        match List::of(text) {
            Ok(list) => format!("{} {} {} plugin(s)", list.name, list.version, list.plugins.len()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn lists_and_single_configurations_are_read() {
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}, {"type": "portmap"}]});
        assert_eq!(parsed(&list), "pods 1.0.0 2 plugin(s)");
        let one = json!({"cniVersion": "0.4.0", "name": "pods", "type": "bridge"});
        assert_eq!(parsed(&one), "pods 0.4.0 1 plugin(s)");
        let new = json!({"cniVersions": ["1.0.0", "1.1.0", "9.0.0"], "name": "pods", "type": "bridge"});
        assert_eq!(parsed(&new), "pods 1.1.0 1 plugin(s)");
        let again = List::of(&List::of(&list).unwrap().to_json());
        assert_eq!(again, List::of(&list));
    }

    #[test]
    fn attack_42_lists_that_could_run_something_else_are_refused() {
        for kind in ["../../bin/sh", "/bin/sh", "", ".", "a b"] {
            let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": kind}]});
            assert!(List::of(&list).is_err(), "{kind:?}");
        }
        for name in ["../x", "", "a/b", "-x"] {
            assert!(List::of(&json!({"cniVersion": "1.0.0", "name": name, "type": "bridge"})).is_err());
        }
        assert!(List::of(&json!({"cniVersion": "9.9.9", "name": "pods", "type": "bridge"})).is_err());
        assert!(List::parse(b"{\"name\": ").is_err());
    }

    #[test]
    fn a_plugin_is_told_what_it_can_use() {
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "capabilities": {"ipRanges": true}}, {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ]});
        let list = List::of(&list).unwrap();
        let ports = [PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: "TCP".to_owned(),
            host_address: None,
        }];
        let capabilities = Capabilities {
            ports: &ports,
            ranges: Some("10.9.0.0/24,fd00:9::/64".parse().unwrap()),
            bandwidth: Bandwidth {
                ingress: Some(10_000_000),
                egress: None,
            },
        };
        let previous = json!({"ips": []});
        let requests: Vec<_> = list
            .plugins
            .iter()
            .map(|plugin| list.request(plugin, &capabilities, Some(&previous)))
            .collect();
        assert_eq!(
            requests,
            [
                json!({"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "capabilities": {"ipRanges": true},
                    "runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]]}, "prevResult": {"ips": []}}),
                json!({"cniVersion": "1.0.0", "name": "pods", "type": "portmap", "capabilities": {"portMappings": true},
                    "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
                    "prevResult": {"ips": []}}),
                json!({"cniVersion": "1.0.0", "name": "pods", "type": "bandwidth", "capabilities": {"bandwidth": true},
                    "runtimeConfig": {"bandwidth": {"ingressRate": 10_000_000, "ingressBurst": u32::MAX}},
                    "prevResult": {"ips": []}}),
            ]
        );
    }
}
