//! Configurations of containers that are made before there is a sandbox to start them in.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_plan::action::Action;
use agent_plan::observed::Sandbox;
use agent_plan::{environment, lifecycle, pods};
use k8s_openapi::api::core::v1::{Container, Pod};
use runtime::ContainerSpec;
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::Worker;
use super::start::{Plan, specification};

/// A pod with more containers has the rest of them configured when they are started.
const LIMIT: usize = 4;

/// The configuration of a container's first instance, and what it was made from.
pub(crate) struct Draft {
    plan: Arc<Plan>,
    specification: ContainerSpec,
    /// Among a crowd of pods nothing is gained by them, and their memory lies about among what stays.
    _place: OwnedSemaphorePermit,
}

/// By the containers' names.
pub(crate) type Drafts = BTreeMap<String, Draft>;

impl Worker {
    /// What shall be started as soon as there is a sandbox, as far as nothing of it depends on that.
    pub(super) fn first(&mut self) -> Vec<Arc<Plan>> {
        let addresses = Vec::new();
        let before = std::mem::replace(&mut self.view.sandbox, Sandbox::Ready { addresses });
        let then = lifecycle::decide(&self.pod, &self.view, self.context.now());
        self.view.sandbox = before;
        let names = then.actions.into_iter().filter_map(|action| {
            let Action::Run { container, attempt: 0 } = action else {
                return None;
            };
            Some(container)
        });
        let plans = names.take(LIMIT).filter_map(|name| {
            let container = pods::container(&self.pod, &name)?;
            let stands_alone = !needs_more(&container) && pods::target(&self.pod, &name).is_none();
            let plan = self.plan(&name, 0).filter(|_| stands_alone)?;
            plan.volume_images.is_empty().then(|| Arc::new(plan))
        });
        plans.collect()
    }

    /// The configuration of a container that was made ahead, if it is still what is wanted.
    pub(super) fn take_draft(&mut self, plan: &Plan) -> Option<ContainerSpec> {
        let Draft {
            plan: made_for,
            specification,
            ..
        } = self.drafts.remove(&plan.container)?;
        let same = made_for.attempt == plan.attempt
            && Arc::ptr_eq(&made_for.image, &plan.image)
            && tells_the_same(&made_for.pod, &plan.pod);
        same.then_some(specification)
    }
}

/// Makes those that can be made. The volumes are there.
pub(super) async fn make(plans: Vec<Arc<Plan>>) -> Drafts {
    let mut made = Drafts::new();
    for plan in plans {
        let Ok(place) = Arc::clone(&plan.context.drafts).try_acquire_owned() else {
            break;
        };
        match specification(&plan).await {
            Ok(specification) => {
                let name = plan.container.clone();
                let draft = Draft {
                    plan,
                    specification,
                    _place: place,
                };
                made.insert(name, draft);
            }
            // The start comes upon it, too, and tells it.
            Err(failure) => debug!(container = plan.container, failure.message, "not configured ahead"),
        }
    }
    made
}

/// Whether its variables are of the pod's addresses, or of files that others write.
fn needs_more(container: &Container) -> bool {
    let variables = container.env.iter().flatten();
    let mut fields = variables.filter_map(|variable| variable.value_from.as_ref()?.field_ref.as_ref());
    fields.any(|field| field.field_path.starts_with("status.")) || environment::wanted(container).next().is_some()
}

/// Whether nothing has changed that a configuration may be made from.
fn tells_the_same(one: &Arc<Pod>, other: &Arc<Pod>) -> bool {
    let told = |pod: &Arc<Pod>| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
    Arc::ptr_eq(one, other) || (one.spec == other.spec && told(one) == told(other))
}
