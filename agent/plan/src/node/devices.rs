//! The choice of a plugin's devices for a container (`devicesToAllocate`,
//! `pkg/kubelet/cm/devicemanager/manager.go`, without topology hints).

use std::collections::BTreeSet;

use api::names::qualified_name;

/// Identifiers of devices.
pub type Ids = BTreeSet<String>;

/// Devices of one resource, and what a container asks of it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name of the resource, as `nvidia.com/gpu`.
    pub resource: &'a str,
    /// UID of the pod.
    pub pod: &'a str,
    /// Name of the container.
    pub container: &'a str,
    /// Number of devices that it asks for.
    pub wanted: usize,
    /// Devices that it has already.
    pub held: Option<&'a Ids>,
    /// Devices of the pod's earlier init containers, which are used again.
    pub reusable: &'a Ids,
    /// Healthy devices; `None` if no plugin has registered the resource.
    pub healthy: Option<&'a Ids>,
    /// Devices of all containers on the node.
    pub in_use: &'a Ids,
}

/// Choice of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The container has its devices.
    Held,
    /// Devices for the container.
    Chosen(Ids),
    /// The container gets the `chosen` devices and `missing` others of `free`; the plugin may say
    /// which.
    Open {
        /// Devices that it gets in any case.
        chosen: Ids,
        /// Devices to choose from.
        free: Ids,
        /// Number of devices to choose.
        missing: usize,
    },
}

/// The container cannot have its devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The container has another number of devices than it asks for.
    #[error("pod {pod:?} container {container:?} changed request for resource {resource:?} from {held} to {wanted}")]
    Changed {
        /// UID of the pod.
        pod: String,
        /// Name of the container.
        container: String,
        /// Name of the resource.
        resource: String,
        /// Number of devices that it has.
        held: usize,
        /// Number of devices that it asks for.
        wanted: usize,
    },
    /// No plugin has registered the resource.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// All devices are unhealthy.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    Unhealthy(String),
    /// Devices of the container have become unhealthy.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    /// Too few devices are free.
    #[error("requested number of devices unavailable for {resource}. Requested: {missing}, Available: {free}")]
    Unavailable {
        /// Name of the resource.
        resource: String,
        /// Number of devices that are to be found.
        missing: usize,
        /// Number of free devices.
        free: usize,
    },
}

/// Chooses devices for a container.
pub fn choose(request: &Request<'_>) -> Result<Choice, DeviceError> {
    let resource = || request.resource.to_owned();
    if let Some(held) = request.held.filter(|held| held.len() != request.wanted) {
        return Err(DeviceError::Changed {
            pod: request.pod.to_owned(),
            container: request.container.to_owned(),
            resource: resource(),
            held: held.len(),
            wanted: request.wanted,
        });
    }
    let healthy = request.healthy.ok_or_else(|| DeviceError::Unregistered(resource()))?;
    if healthy.is_empty() {
        return Err(DeviceError::Unhealthy(resource()));
    }
    if request.held.is_some_and(|held| !held.is_subset(healthy)) {
        return Err(DeviceError::NoLongerHealthy(resource()));
    }
    if request.held.is_some() || request.wanted == 0 {
        return Ok(Choice::Held);
    }
    let chosen: Ids = request.reusable.iter().take(request.wanted).cloned().collect();
    let missing = request.wanted.saturating_sub(chosen.len());
    if missing == 0 {
        return Ok(Choice::Chosen(chosen));
    }
    let free: Ids = healthy.difference(request.in_use).cloned().collect();
    if free.len() < missing {
        return Err(DeviceError::Unavailable {
            resource: resource(),
            missing,
            free: free.len(),
        });
    }
    Ok(Choice::Open { chosen, free, missing })
}

/// Completes an open choice: `preferred` devices come first.
pub fn complete(chosen: Ids, free: &Ids, missing: usize, preferred: &Ids) -> Ids {
    let (first, others) = (free.intersection(preferred), free.difference(preferred));
    let added: Vec<String> = first.chain(others).take(missing).cloned().collect();
    chosen.into_iter().chain(added).collect()
}

/// True for the name of an extended resource (`IsExtendedResourceName`,
/// `pkg/apis/core/v1/helper/helpers.go`).
pub fn is_extended(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Ids {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn says(wanted: usize, held: Option<&str>, reusable: &str, healthy: Option<&str>, in_use: &str) -> String {
        let (held, healthy) = (held.map(ids), healthy.map(ids));
        let chosen = choose(&Request {
            resource: "example.com/x",
            pod: "u",
            container: "c",
            wanted,
            held: held.as_ref(),
            reusable: &ids(reusable),
            healthy: healthy.as_ref(),
            in_use: &ids(in_use),
        });
        let listed = |ids: Ids| ids.into_iter().collect::<Vec<_>>().join(" ");
        match chosen {
            Ok(Choice::Held) => "held".to_owned(),
            Ok(Choice::Chosen(chosen)) => listed(chosen),
            Ok(Choice::Open { chosen, free, missing }) => format!("{} + {missing} of {}", listed(chosen), listed(free)),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn devices_are_free_healthy_ones_in_upstreams_words() {
        assert_eq!(says(1, None, "", Some("a b"), "a"), " + 1 of b");
        assert_eq!(says(2, None, "a", Some("a b c"), "a"), "a + 1 of b c");
        assert_eq!(says(1, None, "a", Some("a b"), "a b"), "a");
        assert_eq!(says(2, Some("a b"), "", Some("a b"), "a b"), "held");
        assert_eq!(
            says(1, None, "", Some("a"), "a"),
            "requested number of devices unavailable for example.com/x. Requested: 1, Available: 0"
        );
        assert_eq!(
            says(1, None, "", None, ""),
            "cannot allocate unregistered device example.com/x"
        );
        assert_eq!(
            says(1, None, "", Some(""), ""),
            "no healthy devices present; cannot allocate unhealthy devices example.com/x"
        );
        assert_eq!(
            says(1, Some("a"), "", Some("b"), "a"),
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/x"
        );
        assert_eq!(
            says(2, Some("a"), "", Some("a b"), "a"),
            "pod \"u\" container \"c\" changed request for resource \"example.com/x\" from 1 to 2"
        );
    }

    #[test]
    fn what_the_plugin_prefers_comes_first() {
        let free = ids("b c d");
        assert_eq!(complete(ids("a"), &free, 2, &ids("d x")), ids("a b d"));
        assert_eq!(complete(ids(""), &free, 1, &ids("")), ids("b"));
    }

    #[test]
    fn names_of_extended_resources_are_told_from_others() {
        assert!(is_extended("nvidia.com/gpu") && is_extended("devices.kubevirt.io/kvm"));
        for other in [
            "cpu",
            "kubernetes.io/x",
            "requests.example.com/x",
            "example.com/a b",
            "a/b/c",
        ] {
            assert!(!is_extended(other), "{other}");
        }
    }
}
