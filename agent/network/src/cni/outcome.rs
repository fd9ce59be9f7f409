//! Results and errors of plugins.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::Cidr;

/// Used part of a result. The rest is passed on unchanged.
#[derive(Debug, Deserialize)]
struct Outcome {
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Given>,
}

#[derive(Debug, Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct Given {
    address: String,
    gateway: Option<IpAddr>,
    interface: Option<usize>,
}

/// Error result of a plugin.
#[derive(Debug, Deserialize)]
struct Refusal {
    msg: String,
    #[serde(default)]
    details: String,
}

/// The pod's addresses and its gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) addresses: Vec<Cidr>,
    pub(super) gateway: Option<IpAddr>,
}

/// Parses the result of a whole list: addresses of the pod's interface, and the gateway of the
/// first one's family.
pub(super) fn addresses(result: &Value, interface: &str) -> Result<Addresses, String> {
    let outcome = Outcome::deserialize(result).map_err(|error| format!("its result is not understood: {error}"))?;
    let is_the_pods = |given: &&Given| {
        let named = given.interface.and_then(|index| outcome.interfaces.get(index));
        named.is_none_or(|named| named.name == interface && !named.sandbox.is_empty())
    };
    let own: Vec<&Given> = outcome.ips.iter().filter(is_the_pods).collect();
    let parsed = own.iter().map(|given| given.address.parse::<Cidr>());
    let addresses = parsed
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("its result is not understood: {error}"))?;
    let Some(first) = addresses.first() else {
        return Err(format!("its result has no address for {interface}"));
    };
    let fits = |gateway: &IpAddr| gateway.is_ipv6() == first.is_ipv6();
    let gateway = own.iter().find_map(|given| given.gateway.filter(fits));
    Ok(Addresses { addresses, gateway })
}

/// Error message of a failed plugin, formatted as in libcni.
pub(super) fn refusal(stdout: &[u8], stderr: &[u8], status: &str) -> String {
    if stdout.is_empty() {
        if stderr.is_empty() {
            return format!("netplugin failed with no error message: {status}");
        }
        return format!("netplugin failed: {:?}", shortened(stderr));
    }
    match serde_json::from_slice::<Refusal>(stdout) {
        Ok(Refusal { msg, details }) if details.is_empty() => shortened(msg.as_bytes()),
        Ok(Refusal { msg, details }) => format!("{}; {}", shortened(msg.as_bytes()), shortened(details.as_bytes())),
        Err(error) => format!(
            "netplugin failed but error parsing its diagnostic message {:?}: {error}",
            shortened(stdout)
        ),
    }
}

/// Maximum length for an event.
pub(super) fn shortened(bytes: &[u8]) -> String {
    const LONGEST: usize = 512;
    String::from_utf8_lossy(bytes.get(..LONGEST).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{addresses, refusal};

    #[test]
    fn results_of_every_version_give_the_pods_address() {
        let interfaces = json!([{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/x"}]);
        let old = json!({"cniVersion": "0.4.0", "interfaces": interfaces,
            "ips": [{"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}]});
        let new = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": [
            {"address": "fd00::5/64", "gateway": "fd00::1", "interface": 2}, {"address": "10.1.0.1/16", "interface": 0},
            {"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}]});
        let bare = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}]});
        let six = json!({"cniVersion": "0.3.1", "interfaces": interfaces,
            "ips": [{"version": "6", "address": "fd00::5/64", "gateway": "fd00::1", "interface": 2}]});
        for (result, expected) in [
            (old, "10.1.0.5/16 by 10.1.0.1"),
            (new, "fd00::5/64 10.1.0.5/16 by fd00::1"),
            (bare, "10.1.0.5/16 by 10.1.0.1"),
            (six, "fd00::5/64 by fd00::1"),
        ] {
            let found = addresses(&result, "eth0").unwrap();
            let each: Vec<String> = found.addresses.iter().map(ToString::to_string).collect();
            assert_eq!(format!("{} by {}", each.join(" "), found.gateway.unwrap()), expected);
        }
        for bad in [
            json!({}),
            json!({"ips": [{"address": 7}]}),
            json!({"ips": [{"address": "fd00::5"}]}),
        ] {
            assert!(addresses(&bad, "eth0").is_err(), "{bad}");
        }
    }

    #[test]
    fn failures_are_told_as_libcni_tells_them() {
        let told = |stdout: &str, stderr: &str| refusal(stdout.as_bytes(), stderr.as_bytes(), "exit status 1");
        assert_eq!(told("", ""), "netplugin failed with no error message: exit status 1");
        assert_eq!(told("", "oops"), "netplugin failed: \"oops\"");
        assert_eq!(told("{\"code\": 11, \"msg\": \"busy\"}", ""), "busy");
        assert_eq!(
            told("{\"code\": 11, \"msg\": \"busy\", \"details\": \"later\"}", ""),
            "busy; later"
        );
        assert!(
            told("nonsense", "").starts_with("netplugin failed but error parsing its diagnostic message \"nonsense\"")
        );
    }
}
