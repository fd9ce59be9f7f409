//! Page sizes of `emptyDir` volumes made of huge pages. The texts are upstream's.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodSpec;

use crate::resources;

/// The medium of such volumes, alone or with a page size behind a dash.
const MEDIUM: &str = "HugePages";
const RESOURCE: &str = "hugepages-";

/// A volume of huge pages that the pod does not request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The pod requests no huge pages, or none of this size.
    #[error("hugePages storage requested, but there is no resource request for huge pages")]
    Unasked,
    /// The pod requests several sizes, and the medium names none.
    #[error("medium: {MEDIUM} can't be used if container requests multiple huge page sizes")]
    Several,
    /// The medium has no page size.
    #[error("medium: {0:?} is invalid")]
    Medium(String),
}

/// True if the medium is huge pages.
pub fn is_medium(medium: &str) -> bool {
    let rest = medium.strip_prefix(MEDIUM);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Returns the page size in bytes of such a volume.
pub fn page_size(medium: &str, spec: &PodSpec) -> Result<i64, Unusable> {
    let initial = spec.init_containers.iter().flatten();
    let asked: BTreeSet<i64> = spec
        .containers
        .iter()
        .chain(initial)
        .filter_map(|container| container.resources.as_ref())
        .flat_map(|resources| [&resources.requests, &resources.limits].into_iter().flatten().flatten())
        .filter_map(|(name, _)| resources::units(name.strip_prefix(RESOURCE)?))
        .collect();
    let named = medium.strip_prefix(MEDIUM).and_then(|rest| rest.strip_prefix('-'));
    let Some(named) = named else {
        let several = asked.len() > 1;
        let only = asked.into_iter().next().ok_or(Unusable::Unasked)?;
        return if several { Err(Unusable::Several) } else { Ok(only) };
    };
    let size = resources::units(named).filter(|size| *size > 0);
    let size = size.ok_or_else(|| Unusable::Medium(medium.to_owned()))?;
    if asked.contains(&size) {
        Ok(size)
    } else {
        Err(Unusable::Unasked)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_is_of_pages_that_the_pod_asks_for() {
        let spec = |sizes: &[&str]| -> PodSpec {
            let limits: serde_json::Map<_, _> = sizes.iter().map(|size| ((*size).to_owned(), json!("4Mi"))).collect();
            serde_json::from_value(json!({"containers": [{"name": "a", "resources": {"limits": limits}}]})).unwrap()
        };
        let (two, none, both) = (
            spec(&["hugepages-2Mi", "memory"]),
            spec(&["memory"]),
            spec(&["hugepages-2Mi", "hugepages-1Gi"]),
        );
        for (medium, spec, expected) in [
            ("HugePages", &two, Ok(2 << 20)),
            ("HugePages-2Mi", &two, Ok(2 << 20)),
            ("HugePages-2048Ki", &two, Ok(2 << 20)),
            ("HugePages-1Gi", &two, Err(Unusable::Unasked)),
            ("HugePages", &none, Err(Unusable::Unasked)),
            ("HugePages", &both, Err(Unusable::Several)),
            ("HugePages-1Gi", &both, Ok(1 << 30)),
            ("HugePages-x", &both, Err(Unusable::Medium("HugePages-x".to_owned()))),
        ] {
            assert_eq!(page_size(medium, spec), expected, "{medium}");
        }
        assert!(is_medium("HugePages") && is_medium("HugePages-2Mi"));
        assert!(!is_medium("") && !is_medium("Memory") && !is_medium("HugePagesX"));
    }
}
