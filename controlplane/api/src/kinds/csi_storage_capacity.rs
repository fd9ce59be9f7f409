//! `CSIStorageCapacity`: remaining storage of a class for a set of nodes.

use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use crate::kind::{Kind, Updates};
use crate::table::Column;
use crate::value::invalid::Invalid;
use crate::value::names::dns1123_subdomain;
use crate::value::quantity::{Quantity, canonicalize};
use crate::workload::validation::selector::label_selector;
use crate::workload::validation::{each, immutable};
use crate::workload::warnings::old_label;

impl Kind for CSIStorageCapacity {
    const UPDATES: Updates = Updates::CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "StorageClassName",
            "storage.v1.CSIStorageCapacity.storageClassName",
            |capacity, _| capacity.storage_class_name.as_str().into(),
        ),
        Column::text("Capacity", "storage.v1.CSIStorageCapacity.capacity", |capacity, _| {
            let amount = capacity.capacity.as_ref();
            amount.map_or("<unset>", |amount| &amount.0).into()
        }),
    ];

    fn set_defaults(&mut self) {
        self.capacity.iter_mut().for_each(canonicalize);
        self.maximum_volume_size.iter_mut().for_each(canonicalize);
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let topology = self.node_topology.as_ref();
        let expressions = topology.and_then(|topology| topology.match_expressions.as_deref());
        let labels = topology.and_then(|topology| topology.match_labels.as_ref());
        let expressions = expressions.unwrap_or_default().iter().enumerate();
        let of_expressions = expressions.filter_map(|(index, expression)| {
            let message = old_label(&expression.key)?;
            let path = format!("nodeTopology.matchExpressions[{index}].key");
            Some(format!("{path}: {} is {message}", expression.key))
        });
        let of_labels = labels.into_iter().flatten().filter_map(|(label, _)| {
            let message = old_label(label)?;
            Some(format!("nodeTopology.matchLabels.{label}: {message}"))
        });
        of_expressions.chain(of_labels).collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        if let Some(topology) = &self.node_topology {
            label_selector(&mut errors, topology, "nodeTopology");
        }
        let class = &self.storage_class_name;
        each(&mut errors, "storageClassName", class, dns1123_subdomain(class));
        if let Some(capacity) = self
            .capacity
            .as_ref()
            .filter(|capacity| Quantity::of(capacity).is_negative())
        {
            let detail = "must be greater than or equal to 0";
            errors.push(Invalid::value("capacity", &capacity.0, detail));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        immutable(&mut errors, "nodeTopology", &self.node_topology, &old.node_topology);
        let class = "storageClassName";
        immutable(&mut errors, class, &self.storage_class_name, &old.storage_class_name);
        errors
    }
}
