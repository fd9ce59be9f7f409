//! Ephemeral containers: added to a running pod for debugging.

use k8s_openapi::api::core::v1::Pod;

use crate::value::invalid::Invalid;
use crate::workload::validation::{difference, newly, pod_spec};

const FIELD: &str = "spec.ephemeralContainers";

/// Updates through `ephemeralcontainers`: everything else of the pod is kept.
pub fn update(new: &mut Pod, old: &Pod) -> Vec<Invalid> {
    let wanted = new.spec.take().and_then(|spec| spec.ephemeral_containers);
    let managed = new.metadata.managed_fields.take();
    *new = old.clone();
    new.metadata.managed_fields = managed;
    let spec = new.spec.get_or_insert_default();
    spec.ephemeral_containers = wanted.filter(|wanted| !wanted.is_empty());
    crate::workload::pod::defaults::set_pod_defaults(spec);
    if new.spec == old.spec {
        return Vec::new();
    }
    new.metadata.generation = new.metadata.generation.map(|generation| generation + 1);
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else {
        return vec![Invalid::required("spec", "")];
    };
    let mut errors = newly(pod_spec::validate(new, "spec"), || pod_spec::validate(old, "spec"));
    errors.extend(crate::workload::pod::unsupported(new));
    let list = new.ephemeral_containers.as_deref().unwrap_or_default();
    for known in old.ephemeral_containers.iter().flatten() {
        match list.iter().find(|own| own.name == known.name) {
            None => {
                let detail = format!("existing ephemeral containers {:?} may not be removed\n", known.name);
                errors.push(Invalid::forbidden(FIELD, detail));
            }
            Some(own) if own != known => {
                let detail = format!("existing ephemeral containers {:?} may not be changed", known.name);
                errors.push(Invalid::forbidden(
                    FIELD,
                    format!("{detail}\n{}", difference(own, known)),
                ));
            }
            Some(_) => {}
        }
    }
    errors
}
