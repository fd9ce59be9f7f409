//! In-place resize of a running pod's CPU and memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::qos;
use crate::value::invalid::Invalid;
use crate::workload::validation::{newly, pod_spec};

type Amounts = Option<BTreeMap<String, Text>>;

/// Resources that can be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Updates through `resize`: everything else of the pod is kept.
pub fn update(new: &mut Pod, old: &Pod) -> Vec<Invalid> {
    let wanted = new.spec.take().unwrap_or_default();
    let managed = new.metadata.managed_fields.take();
    *new = old.clone();
    new.metadata.managed_fields = managed;
    let Some(known) = &old.spec else {
        return vec![Invalid::required("spec", "")];
    };
    let errors = order(&wanted, known);
    if !errors.is_empty() {
        return errors;
    }
    let mut errors = errors;
    let spec = new.spec.get_or_insert_default();
    spec.resources = wanted.resources;
    take_over(&mut spec.containers, wanted.containers);
    let init = spec.init_containers.as_deref_mut().unwrap_or_default();
    take_over(init, wanted.init_containers.unwrap_or_default());
    crate::workload::pod::defaults::set_pod_defaults(spec);
    if new.spec == old.spec {
        return errors;
    }
    new.metadata.generation = new.metadata.generation.map(|generation| generation + 1);
    let (Some(spec), Some(known)) = (&new.spec, &old.spec) else {
        return errors;
    };
    errors.extend(newly(pod_spec::validate(spec, "spec"), || {
        pod_spec::validate(known, "spec")
    }));
    errors.extend(crate::workload::pod::unsupported(spec));
    let class = old.status.as_ref().and_then(|status| status.qos_class.as_deref());
    let class = class.unwrap_or_else(|| qos(known));
    if qos(spec) != class {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(Invalid::value("spec", class, detail));
    }
    if !is_told(old) {
        errors.push(Invalid::forbidden(
            "spec",
            "Pod running on node without support for resize",
        ));
    }
    changes(&mut errors, spec, known);
    errors
}

/// Validates that no container is added, removed or moved: names identify them.
fn order(new: &PodSpec, old: &PodSpec) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let lists = [
        ("containers", new.containers.as_slice(), old.containers.as_slice()),
        (
            "initContainers",
            new.init_containers.as_deref().unwrap_or_default(),
            old.init_containers.as_deref().unwrap_or_default(),
        ),
    ];
    for (field, new, old) in lists {
        if new.len() != old.len() {
            let detail = format!("{field} may not be added or removed on resize");
            errors.push(Invalid::forbidden(format!("spec.{field}"), detail));
            continue;
        }
        for (index, (new, old)) in new.iter().zip(old).enumerate() {
            if new.name != old.name {
                let detail = format!("{field} may not be renamed or reordered on resize");
                errors.push(Invalid::forbidden(format!("spec.{field}[{index}].name"), detail));
            }
        }
    }
    errors
}

fn take_over(into: &mut [Container], from: Vec<Container>) {
    for (into, from) in into.iter_mut().zip(from) {
        into.resources = from.resources;
        into.resize_policy = from.resize_policy;
    }
}

/// True if the node reports the actual resources of running containers.
fn is_told(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let mut running = statuses.filter(|own| own.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.next().is_none_or(|own| own.resources.is_some())
}

/// Validates the changes in the order of `ValidatePodResize`
/// (`pkg/apis/core/validation/validation.go`).
fn changes(errors: &mut Vec<Invalid>, new: &PodSpec, old: &PodSpec) {
    whole(errors, new, old);
    let init = (
        new.init_containers.as_deref().unwrap_or_default(),
        old.init_containers.as_deref().unwrap_or_default(),
    );
    let main = (new.containers.as_slice(), old.containers.as_slice());
    for (field, (new, old)) in [("initContainers", init), ("containers", main)] {
        for (index, (new, old)) in new.iter().zip(old).enumerate() {
            let (new, old) = (resources(new), resources(old));
            let path = format!("spec.{field}[{index}].resources");
            if removed(&new.requests, &old.requests) {
                let detail = "resource requests cannot be removed";
                errors.push(Invalid::forbidden(format!("{path}.requests"), detail));
            }
            if removed(&new.limits, &old.limits) {
                let detail = "resource limits cannot be removed";
                errors.push(Invalid::forbidden(format!("{path}.limits"), detail));
            }
        }
    }
    for (new, old) in main.0.iter().zip(main.1) {
        if restore(new, old) != *old {
            errors.push(Invalid::forbidden("spec", "only cpu and memory resources are mutable"));
        }
    }
    for (index, (new, old)) in init.0.iter().zip(init.1).enumerate() {
        let forbidden = |detail: &str| Invalid::forbidden(format!("spec.initContainers[{index}]"), detail);
        let same = restore(new, old) == *old;
        if !same {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(forbidden(detail));
        }
        if (!same || resources(new) != resources(old)) && !super::is_sidecar(new) {
            let policies = new.resize_policy.iter().flatten();
            let restarts = policies.filter(|policy| policy.restart_policy == "RestartContainer");
            let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.extend(restarts.map(|_| forbidden(detail)));
        }
    }
}

fn resources(container: &Container) -> ResourceRequirements {
    container.resources.clone().unwrap_or_default()
}

/// Validates the change of pod-level resources.
fn whole(errors: &mut Vec<Invalid>, new: &PodSpec, old: &PodSpec) {
    if new.resources == old.resources {
        return;
    }
    let of = |spec: &PodSpec| spec.resources.clone().unwrap_or_default();
    let (own, before) = (of(new), of(old));
    for (field, own, before) in [
        ("requests", &own.requests, &before.requests),
        ("limits", &own.limits, &before.limits),
    ] {
        if removed(own, before) {
            let detail = format!("resource {field} cannot be removed");
            errors.push(Invalid::forbidden(format!("spec.resources.{field}"), detail));
        }
    }
    if restored_amounts(own, &before) != before {
        errors.push(Invalid::forbidden(
            "spec.resources",
            "only cpu and memory resources are mutable",
        ));
    }
}

fn removed(new: &Amounts, old: &Amounts) -> bool {
    let left = |name: &String| new.as_ref().is_some_and(|new| new.contains_key(name));
    old.iter().flatten().any(|(name, _)| !left(name))
}

/// New container with the old one's CPU and memory.
fn restore(new: &Container, old: &Container) -> Container {
    let before = resources(old);
    let restored = restored_amounts(resources(new), &before);
    let same = restored == before;
    Container {
        resources: if same { old.resources.clone() } else { Some(restored) },
        ..new.clone()
    }
}

fn restored_amounts(own: ResourceRequirements, before: &ResourceRequirements) -> ResourceRequirements {
    ResourceRequirements {
        requests: amounts(own.requests, before.requests.as_ref()),
        limits: amounts(own.limits, before.limits.as_ref()),
        ..own
    }
}

fn amounts(new: Amounts, old: Option<&BTreeMap<String, Text>>) -> Amounts {
    let mut all = new.unwrap_or_default();
    for name in RESIZABLE {
        all.remove(name);
        if let Some(amount) = old.and_then(|old| old.get(name)) {
            all.insert(name.to_owned(), amount.clone());
        }
    }
    (old.is_some() || !all.is_empty()).then_some(all)
}
