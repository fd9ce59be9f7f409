//! Usage of local ephemeral storage, and the messages of pods that exceed their limits.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume};

use crate::pod::pods;

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes of its files on disk.
    pub bytes: i64,
    /// Its files and directories.
    pub inodes: i64,
}

impl Used {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// Disk usage of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    /// Usage of its writable layer.
    pub layer: Used,
    /// Usage of its log.
    pub log: Used,
}

impl ContainerUse {
    /// Both together, which limits apply to.
    pub const fn total(self) -> Used {
        self.layer.plus(self.log)
    }
}

/// Disk usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Its volumes that use the node's disk.
    pub volumes: BTreeMap<String, Used>,
    /// Usage of its containers.
    pub containers: BTreeMap<String, ContainerUse>,
    /// Usage of the files that the node provides: `/etc/hosts` and the like, and termination
    /// messages.
    pub own: Used,
}

impl DiskUse {
    /// Total usage.
    pub fn total(&self) -> Used {
        self.layers().plus(self.files())
    }

    /// Usage of the writable layers, which may be on another file system.
    pub fn layers(&self) -> Used {
        let layers = self.containers.values().map(|own| own.layer);
        layers.fold(Used::default(), Used::plus)
    }

    /// The rest: logs, volumes, and the files that the node provides.
    pub fn files(&self) -> Used {
        let logs = self.containers.values().map(|own| own.log);
        logs.chain(self.volumes.values().copied()).fold(self.own, Used::plus)
    }
}

/// Disk usage of a pod by part.
#[derive(Clone)]
pub struct Parts {
    /// Writable layers of its containers.
    pub layers: BTreeMap<String, Used>,
    /// Container logs.
    pub logs: BTreeMap<String, Used>,
    /// Volumes on the node's disk.
    pub volumes: BTreeMap<String, Used>,
    /// Files that the node creates for it.
    pub own: Used,
}

impl Parts {
    /// Returns the usage of containers including their logs.
    pub fn together(self) -> DiskUse {
        let logs = &self.logs;
        let with_log = |(name, layer): (String, Used)| {
            let log = logs.get(&name).copied().unwrap_or_default();
            (name, ContainerUse { layer, log })
        };
        DiskUse {
            containers: self.layers.into_iter().map(with_log).collect(),
            volumes: self.volumes,
            own: self.own,
        }
    }
}

/// Returns the `emptyDir` volumes of a pod on the node's disk.
pub fn volumes(pod: &Pod) -> impl Iterator<Item = (&Volume, &EmptyDirVolumeSource)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let own = volumes.filter_map(|volume| Some((volume, volume.empty_dir.as_ref()?)));
    own.filter(|(_, source)| source.medium.as_deref().unwrap_or_default().is_empty())
}

fn size_limit(source: &EmptyDirVolumeSource) -> Option<Quantity> {
    let limit = source.size_limit.as_ref().map(Quantity::of)?;
    (!limit.is_zero() && !limit.is_negative()).then_some(limit)
}

fn own_limit(container: &Container) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let limit = Quantity::of(limits.get("ephemeral-storage")?);
    (!limit.is_zero()).then_some(limit)
}

/// True if the pod has a limit on ephemeral storage, so that its usage must be measured.
pub fn is_limited(pod: &Pod) -> bool {
    volumes(pod).any(|(_, source)| size_limit(source).is_some())
        || pods::all_containers(pod).any(|container| own_limit(container).is_some())
}

/// Returns the signal and message of the eviction of a pod that exceeds a limit: that of a volume,
/// the pod as a whole, or a container.
pub fn exceeded(pod: &Pod, used: &DiskUse) -> Option<(&'static str, String)> {
    let over = |used: i64, limit: Quantity| Quantity::bytes(used) > limit;
    let volume = volumes(pod).find_map(|(volume, source)| {
        let limit = size_limit(source)?;
        let own = used.volumes.get(&volume.name)?;
        over(own.bytes, limit).then(|| {
            let name = &volume.name;
            let message = format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". ");
            ("emptydirfs.limit", message)
        })
    });
    let whole = || {
        let limits = api::pod::limits(pod.spec.as_ref()?);
        let limit = *limits.get("ephemeral-storage")?;
        over(used.total().bytes, limit).then(|| {
            let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
            ("ephemeralpodfs.limit", message)
        })
    };
    let container = || {
        pods::main_containers(pod).iter().find_map(|container| {
            let limit = own_limit(container)?;
            let name = &container.name;
            over(used.containers.get(name)?.total().bytes, limit).then(|| {
                let message = format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ");
                ("ephemeralcontainerfs.limit", message)
            })
        })
    };
    volume.or_else(whole).or_else(container)
}

/// Delay before a pod's usage is measured again, in milliseconds, by the duration of the last
/// measurement: all of them together take at most a fiftieth of one CPU's time, but no delay
/// exceeds five minutes.
pub fn next_look(took_microseconds: i64, pods: i64) -> i64 {
    const SOONEST: i64 = 10_000;
    const LATEST: i64 = 300_000;
    (took_microseconds.saturating_mul(pods.max(1)) / 20).clamp(SOONEST, LATEST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(limits: [&str; 2], size: &str) -> Pod {
        let container = |name: &str, limit: &str| match limit {
            "" => json!({"name": name}),
            limit => json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}}),
        };
        let volume = match size {
            "" => json!({}),
            size => json!({"sizeLimit": size}),
        };
        let [a, b] = limits;
        serde_json::from_value(json!({"spec": {
            "containers": [container("a", a), container("b", b)],
            "volumes": [{"name": "data", "emptyDir": volume}, {"name": "mem", "emptyDir": {"medium": "Memory"}}],
        }}))
        .unwrap()
    }

    fn used(volume: i64, a: i64, b: i64) -> DiskUse {
        let own = |kibibytes: i64| Used {
            bytes: kibibytes << 10,
            inodes: 1,
        };
        let wrote = |kibibytes: i64| ContainerUse {
            layer: own(kibibytes / 2),
            log: own(kibibytes - kibibytes / 2),
        };
        DiskUse {
            volumes: BTreeMap::from([("data".to_owned(), own(volume))]),
            containers: BTreeMap::from([("a".to_owned(), wrote(a)), ("b".to_owned(), wrote(b))]),
            own: Used::default(),
        }
    }

    #[test]
    fn who_uses_more_than_its_limit_is_told_in_upstreams_words() {
        let volume = "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ";
        let whole =
            |limit: &str| format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        let own = "Container a exceeded its local ephemeral storage limit \"1Mi\". ";
        for (limits, size, used, expected) in [
            (["", ""], "", used(9000, 9000, 9000), ""),
            (["", ""], "1Mi", used(1024, 9000, 9000), ""),
            (["", ""], "1Mi", used(1025, 0, 0), volume),
            (["", ""], "0", used(1025, 0, 0), ""),
            (["1Mi", "1Mi"], "", used(1024, 512, 513), &whole("2Mi")),
            (["1Mi", ""], "", used(0, 512, 513), &whole("1Mi")),
            (["1Mi", "1Mi"], "", used(0, 1025, 0), own),
            (["1Mi", "1Mi"], "", used(0, 1024, 1024), ""),
            (["1Mi", "1Mi"], "1Mi", used(1025, 1025, 1025), volume),
        ] {
            let pod = pod(limits, size);
            let (signal, told) = exceeded(&pod, &used).unwrap_or_default();
            assert_eq!(told, expected, "{limits:?} {size:?} {used:?}");
            let begins = match signal {
                "emptydirfs.limit" => "Usage of EmptyDir",
                "ephemeralpodfs.limit" => "Pod ",
                "ephemeralcontainerfs.limit" => "Container ",
                none => none,
            };
            assert!(told.starts_with(begins), "{signal}: {told}");
            assert!(told.is_empty() || is_limited(&pod));
        }
        assert!(!is_limited(&pod(["", ""], "")));
    }

    #[test]
    fn looks_take_a_small_part_of_the_time() {
        for (took, pods, expected) in [(100, 500, 10_000), (1000, 500, 25_000), (2_000_000, 1, 100_000)] {
            assert_eq!(next_look(took, pods), expected);
        }
        assert_eq!(next_look(i64::MAX, i64::MAX), 300_000);
    }
}
