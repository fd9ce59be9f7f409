//! Configurations of containers that are built before their sandbox is ready.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::container::{environment, oci};
use agent_plan::pod::action::Action;
use agent_plan::pod::observed::Sandbox;
use agent_plan::pod::{lifecycle, pods};
use agent_plan::volume::claims::claim_volumes;
use api::pod::References;
use k8s_openapi::api::core::v1::{Container, Pod};
use runtime::ContainerSpec;
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::plan::Plan;
use super::spec::{own_specification, specification};
use crate::networking::services;
use crate::networking::services::slices::Services;
use crate::pod::worker::Worker;

/// Maximum number per pod; further containers are configured when they start.
const LIMIT: usize = 4;

/// Configuration of a container's first instance, and its inputs.
pub(crate) struct Draft {
    plan: Arc<Plan>,
    specification: ContainerSpec,
    /// Input of its environment.
    services: Option<Arc<Services>>,
    /// Bounds the number of drafts: with many starting pods they gain nothing, and fragment the
    /// heap.
    _place: OwnedSemaphorePermit,
}

/// By the containers' names.
pub(crate) type Drafts = BTreeMap<String, Draft>;

impl Worker {
    /// Returns plans of the containers to start once the sandbox is ready, as far as they do not
    /// depend on it.
    pub(in crate::pod::worker) fn first(&mut self) -> Vec<Arc<Plan>> {
        let addresses = Vec::new();
        let before = std::mem::replace(&mut self.view.sandbox, Sandbox::Ready { addresses });
        let names = self.starting();
        self.view.sandbox = before;
        let plans = names.into_iter().take(LIMIT).filter_map(|name| {
            let container = pods::container(&self.pod, &name)?;
            // A plugin prepares its devices for each start.
            let has_devices = self.context.devices.has(pods::uid(&self.pod), &name);
            let targets = pods::target(&self.pod, &name).is_some();
            let stands_alone = !needs_more(&container) && !targets && !has_devices;
            let plan = self.plan(&name, 0).filter(|_| stands_alone)?;
            plan.volume_images.is_empty().then(|| Arc::new(plan))
        });
        plans.collect()
    }

    /// Returns the containers whose first instances are to be started now.
    fn starting(&self) -> Vec<String> {
        let then = lifecycle::decide(&self.pod, &self.view, self.context.now());
        let names = then.actions.into_iter().filter_map(|action| {
            let Action::Run { container, attempt: 0 } = action else {
                return None;
            };
            Some(container)
        });
        names.collect()
    }

    /// Stores drafts for containers that are started now; others would be kept without use, for
    /// example if the pod has ended.
    pub(in crate::pod::worker) fn keep_drafts(&mut self, mut drafts: Drafts) {
        if !drafts.is_empty() {
            let names = self.starting();
            drafts.retain(|name, _| names.contains(name));
        }
        self.drafts = drafts;
    }

    /// Returns the draft of a container if it is up to date.
    pub(super) fn take_draft(&mut self, plan: &Plan) -> Option<ContainerSpec> {
        let Draft {
            plan: made_for,
            specification,
            services,
            ..
        } = self.drafts.remove(&plan.container)?;
        let same = made_for.attempt == plan.attempt
            && Arc::ptr_eq(&made_for.image, &plan.image)
            && tells_the_same(&made_for.pod, &plan.pod)
            && shows_the_same(plan, services.as_ref());
        same.then_some(specification)
    }
}

/// Splits plans into those that can be configured before the pod's volumes are ready, from the
/// agent's own data and without waiting, and the others.
pub(in crate::pod::worker) fn early(plans: Vec<Arc<Plan>>) -> (Vec<Arc<Plan>>, Vec<Arc<Plan>>) {
    plans.into_iter().partition(|plan| {
        let container = pods::container(&plan.pod, &plan.container);
        let known = plan.context.services.borrow().is_some();
        known && container.is_some_and(|container| is_early(plan, &container))
    })
}

fn is_early(plan: &Plan, container: &Container) -> bool {
    let Plan { context, pod, .. } = plan;
    // Files must exist before they can be labeled.
    let unlabelled = matches!(context.se_linux.level(&plan.sandbox), Ok(None));
    let profiled = oci::localhost_profile(pod, container).is_some() || !context.app_armor.knows(pod, container);
    // Claims may come with a group for all containers.
    let mut volumes = pods::volumes(pod).iter();
    let claimless = claim_volumes(pod).is_empty() && volumes.all(|volume| volume.csi.is_none() && volume.nfs.is_none());
    unlabelled && !profiled && claimless && !sees_devices(container) && !looks_into_volumes(container)
}

/// True if the container has the machine's devices as of its creation, which a volume may add to.
fn sees_devices(container: &Container) -> bool {
    let context = container.security_context.as_ref();
    context.and_then(|context| context.privileged) == Some(true)
}

/// True if the configuration of a container depends on contents of its volumes.
fn looks_into_volumes(container: &Container) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| {
        mount.sub_path.as_ref().is_some_and(|path| !path.is_empty())
            || mount.sub_path_expr.is_some()
            || mount.mount_propagation.as_deref() == Some("Bidirectional")
    })
}

/// Time at which drafts are built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pod::worker) enum When {
    /// Before the pod's volumes are ready, for plans of [`early`]; `placed` if all mount sources
    /// exist, though they may be empty.
    Early {
        placed: bool,
    },
    Late,
}

/// Builds the drafts that can be built.
pub(in crate::pod::worker) async fn make(plans: Vec<Arc<Plan>>, when: When) -> Drafts {
    let mut made = Drafts::new();
    for plan in plans {
        let Ok(place) = Arc::clone(&plan.context.drafts).try_acquire_owned() else {
            break;
        };
        let services = plan.context.services.borrow().clone();
        // On this thread: the pod's supervisor waits only for this once it has created the cgroups.
        let specified = match when {
            When::Early { .. } => Box::pin(own_specification(&plan)).await,
            When::Late => Box::pin(specification(&plan)).await,
        };
        match specified {
            Ok(specification) => {
                let placed = when == When::Early { placed: true };
                plan.context
                    .parts
                    .runtime
                    .foresee(&plan.sandbox, &specification, placed);
                let name = plan.container.clone();
                let draft = Draft {
                    plan,
                    specification,
                    services,
                    _place: place,
                };
                made.insert(name, draft);
            }
            // The start runs into the same failure and reports it.
            Err(failure) => debug!(container = plan.container, failure.message, "not configured ahead"),
        }
    }
    made
}

/// True if its environment refers to the pod's addresses, or to files, ConfigMaps or Secrets, which
/// may change until it is started.
fn needs_more(container: &Container) -> bool {
    let variables = container.env.iter().flatten();
    let mut fields = variables.filter_map(|variable| variable.value_from.as_ref()?.field_ref.as_ref());
    fields.any(|field| field.field_path.starts_with("status."))
        || environment::wanted(container).next().is_some()
        || !References::of_container(container).is_empty()
}

/// True if the Services' environment variables are unchanged for a container.
fn shows_the_same(plan: &Plan, before: Option<&Arc<Services>>) -> bool {
    let now = plan.context.services.borrow().clone();
    let (Some(before), Some(now)) = (before, now) else {
        return false;
    };
    let links = plan.pod.spec.as_ref().and_then(|spec| spec.enable_service_links);
    let told = |all: &Services| services::variables(all, &plan.pod, links);
    Arc::ptr_eq(before, &now) || told(before) == told(&now)
}

/// True if the parts of the pod that a configuration depends on are unchanged.
fn tells_the_same(one: &Arc<Pod>, other: &Arc<Pod>) -> bool {
    let told = |pod: &Arc<Pod>| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
    Arc::ptr_eq(one, other) || (one.spec == other.spec && told(one) == told(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_change_is_read_when_a_container_starts() {
        let check = |own: &str| {
            let container: Container = serde_json::from_str(&format!(r#"{{"name":"c",{own}}}"#)).unwrap();
            needs_more(&container)
        };
        assert!(!check(r#""env":[{"name":"A","value":"a"}]"#));
        for own in [
            r#""envFrom":[{"secretRef":{"name":"s"}}]"#,
            r#""envFrom":[{"configMapRef":{"name":"s"}}]"#,
            r#""env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]"#,
            r#""env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}]"#,
        ] {
            assert!(check(own), "{own}");
        }
    }

    #[test]
    fn only_places_of_volumes_are_known_before_they_are_there() {
        let check = |mount: &str| {
            let text = format!(r#"{{"name":"c","volumeMounts":[{{"name":"v","mountPath":"/v"{mount}}}]}}"#);
            let container: Container = serde_json::from_str(&text).unwrap();
            looks_into_volumes(&container)
        };
        for plain in ["", r#","subPath":"""#, r#","mountPropagation":"HostToContainer""#] {
            assert!(!check(plain), "{plain}");
        }
        for deeper in [
            r#","subPath":"a""#,
            r#","subPathExpr":"$(A)""#,
            r#","mountPropagation":"Bidirectional""#,
        ] {
            assert!(check(deeper), "{deeper}");
        }
    }
}
