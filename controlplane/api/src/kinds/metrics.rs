//! `NodeMetrics` and `PodMetrics` of `metrics.k8s.io`: current usage of nodes and pods. Measured on
//! request, never stored.
//!
//! [`Measures`] is the agent's response to a request to [`PATH`] on its node.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{ClusterResourceScope, Metadata, NamespaceResourceScope, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::{Kind, Verbs};
use crate::table::Column;
use crate::value::quantity::Quantity;

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
const API_VERSION: &str = "metrics.k8s.io/v1beta1";

/// Amounts by resource.
type ResourceList = BTreeMap<String, Text>;

/// Path at which agents serve their [`Measures`].
pub const PATH: &str = "/measures";

/// What a node uses.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(rename = "io.k8s.api.metrics.v1beta1.NodeMetrics")]
pub struct NodeMetrics {
    /// The version of this form.
    pub api_version: String,
    /// What this is.
    pub kind: String,
    /// Name and labels of the node.
    pub metadata: ObjectMeta,
    /// The end of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// How long CPU time was counted.
    pub window: String,
    /// `cpu` and `memory`.
    pub usage: ResourceList,
}

/// What a pod uses.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(rename = "io.k8s.api.metrics.v1beta1.PodMetrics")]
pub struct PodMetrics {
    /// The version of this form.
    pub api_version: String,
    /// What this is.
    pub kind: String,
    /// Name, namespace and labels of the pod.
    pub metadata: ObjectMeta,
    /// The end of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// How long CPU time was counted.
    pub window: String,
    /// The containers that run.
    pub containers: Vec<ContainerMetrics>,
}

/// What a container uses.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(rename = "io.k8s.api.metrics.v1beta1.ContainerMetrics")]
pub struct ContainerMetrics {
    /// Its name in the pod.
    pub name: String,
    /// `cpu` and `memory`.
    pub usage: ResourceList,
}

macro_rules! resource {
    ($kind:ident, $plural:literal, $scope:ty, $measured:ident) => {
        impl Default for $kind {
            fn default() -> Self {
                Self {
                    api_version: API_VERSION.to_owned(),
                    kind: Self::KIND.to_owned(),
                    metadata: ObjectMeta::default(),
                    timestamp: None,
                    window: String::new(),
                    $measured: Default::default(),
                }
            }
        }

        impl Resource for $kind {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = VERSION;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(NodeMetrics, "nodes", ClusterResourceScope, usage);
resource!(PodMetrics, "pods", NamespaceResourceScope, containers);

impl Kind for NodeMetrics {
    const VERBS: Verbs = Verbs::Measured;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("cpu", "CPU time in each second.", |node, _| {
            total([&node.usage], "cpu").into()
        }),
        Column::text("memory", "Memory that cannot be given away.", |node, _| {
            total([&node.usage], "memory").into()
        }),
        Column::text("Window", "How long CPU time was counted.", |node, _| {
            node.window.as_str().into()
        }),
    ];
}

impl Kind for PodMetrics {
    const VERBS: Verbs = Verbs::Measured;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("cpu", "CPU time in each second.", |pod, _| {
            total(pod.containers.iter().map(|container| &container.usage), "cpu").into()
        }),
        Column::text("memory", "Memory that cannot be given away.", |pod, _| {
            total(pod.containers.iter().map(|container| &container.usage), "memory").into()
        }),
        Column::text("Window", "How long CPU time was counted.", |pod, _| {
            pod.window.as_str().into()
        }),
    ];
}

fn total<'a>(usages: impl IntoIterator<Item = &'a ResourceList>, resource: &str) -> String {
    let of = |usage: &ResourceList| usage.get(resource).map(Quantity::of);
    let mut all = usages.into_iter().filter_map(of);
    let Some(first) = all.next() else {
        return String::new();
    };
    all.fold(first, Quantity::plus).to_text().0
}

/// Measurements that an agent took on its node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Measures {
    /// Time of the measurement.
    pub time: Time,
    /// Window over which CPU time was measured.
    pub window_millis: u64,
    /// The whole node.
    pub node: Usage,
    /// Its pods with the containers that run.
    pub pods: Vec<PodUsage>,
}

/// Usage of a pod's containers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PodUsage {
    /// The pod's uid.
    pub uid: String,
    /// By container.
    pub containers: Vec<(String, Usage)>,
}

/// CPU and memory.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Nanoseconds of CPU time in each second.
    pub nanocores: u64,
    /// Working set in bytes: memory usage without inactive file pages.
    pub working_set_bytes: u64,
}

impl Usage {
    /// Usage in the form of the metrics API: `cpu` and `memory`.
    pub fn to_list(self) -> BTreeMap<String, Text> {
        let cpu = Quantity::of(&Text(format!("{}n", self.nanocores)));
        let memory = Quantity::bytes(i64::try_from(self.working_set_bytes).unwrap_or(i64::MAX));
        BTreeMap::from([
            ("cpu".to_owned(), cpu.to_text()),
            ("memory".to_owned(), memory.to_text()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn usage_is_told_as_quantities() {
        let texts = |nanocores, working_set_bytes| {
            let list = Usage {
                nanocores,
                working_set_bytes,
            }
            .to_list();
            (list["cpu"].0.clone(), list["memory"].0.clone())
        };
        assert_eq!(texts(0, 0), ("0".to_owned(), "0".to_owned()));
        assert_eq!(texts(1_234_567, 4096), ("1234567n".to_owned(), "4Ki".to_owned()));
        assert_eq!(texts(250_000_000, 5000), ("250m".to_owned(), "5000".to_owned()));
    }
}
