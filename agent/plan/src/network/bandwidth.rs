//! Limits of a pod's traffic by its annotations, as containerd reads them
//! (`internal/cri/bandwidth/utils.go`).

use std::collections::BTreeMap;

use api::quantity::Quantity;
use serde::{Deserialize, Serialize};

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The lowest and the highest limit, in bits per second.
const LOWEST: i64 = 1_000;
const HIGHEST: i64 = 1_000_000_000_000_000;

/// Limits of a pod's traffic in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Limit of what it receives.
    pub ingress: Option<u64>,
    /// Limit of what it sends.
    pub egress: Option<u64>,
}

impl Bandwidth {
    /// Reads a pod's annotations. The error is for the pod's event.
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Result<Self, String> {
        let limit = |name: &str| {
            annotations
                .and_then(|all| all.get(name))
                .map(|text| rate(text))
                .transpose()
        };
        let read = || {
            Ok::<_, String>(Self {
                ingress: limit(INGRESS)?,
                egress: limit(EGRESS)?,
            })
        };
        read().map_err(|why| format!("reading pod bandwidth annotations: {why}"))
    }
}

fn rate(text: &str) -> Result<u64, String> {
    let rate = Quantity::parse(text).map_err(|error| error.to_string())?.value();
    if rate < LOWEST {
        return Err("resource is unreasonably small (< 1kbit)".to_owned());
    }
    if rate > HIGHEST {
        return Err("resource is unreasonably large (> 1Pbit)".to_owned());
    }
    Ok(rate.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_bits() {
        let read = |ingress: Option<&str>, egress: Option<&str>| {
            let both = [(INGRESS, ingress), (EGRESS, egress)];
            let all = both
                .iter()
                .filter_map(|(name, value)| Some(((*name).to_owned(), (*value)?.to_owned())));
            Bandwidth::of(Some(&all.collect()))
        };
        let limits = |ingress, egress| Ok::<_, String>(Bandwidth { ingress, egress });
        assert_eq!(Bandwidth::of(None), limits(None, None));
        assert_eq!(read(None, None), limits(None, None));
        assert_eq!(read(Some("10M"), None), limits(Some(10_000_000), None));
        assert_eq!(
            read(Some("1P"), Some("1k")),
            limits(Some(HIGHEST.unsigned_abs()), Some(1000))
        );
        let small = "reading pod bandwidth annotations: resource is unreasonably small (< 1kbit)";
        assert_eq!(read(None, Some("10")), Err(small.to_owned()));
        assert!(
            read(Some("2P"), None)
                .unwrap_err()
                .ends_with("unreasonably large (> 1Pbit)")
        );
        assert!(read(Some("10Mbit"), None).is_err());
    }
}
