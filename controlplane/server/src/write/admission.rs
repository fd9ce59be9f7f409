//! Admission chain: defaults from the cluster, and checks beyond the object itself, before it is
//! stored.
//!
//! [`MUTATING`] steps run first, then derived fields are set, the [allocated](ALLOCATING) ones
//! last; then come the kind's own rules, then [`VALIDATING`] steps, each list in upstream's order.
//! Each list ends with the [policies] and then the [webhooks] of its kind. Steps read the store,
//! never change it; every step may run again on its own result, because a commit whose
//! preconditions fail starts over.

mod certificates;
mod classes;
pub(crate) mod expressions;
mod namespace;
mod node;
pub(crate) mod pods;
pub(crate) mod policies;
mod protection;
pub(crate) mod quota;
mod service;
pub(crate) mod webhooks;

use std::collections::BTreeSet;

use api::Object;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use store::{Seen, Write};

use crate::authz::escalation;
use crate::ops::metrics::{Half, Watch};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::write::owners;
use pods::{limits, pod_security, priority, resize, service_account, tolerations, topology};
use webhooks::Asked;

pub(crate) use namespace::may_delete;
pub(crate) use node::{may_become, may_configure, may_request_token, may_touch};
pub(crate) use pods::service_account::await_account;
pub(crate) use service::farewell;

/// Part of an object that a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The object without its status.
    Object,
    /// Its status.
    Status,
    /// A pod's ephemeral containers.
    EphemeralContainers,
    /// Resources of a pod's containers.
    Resize,
    /// Fields of the kind's own subresource: a namespace's finalizers, the approval of a signing
    /// request.
    Own,
    /// Fields that the server itself sets: not subject to the rules for clients' updates.
    Decided,
}

impl Part {
    /// Part that a request to a subresource, or to the object itself, may change.
    pub(crate) fn of(subresource: &str) -> Self {
        match subresource {
            "status" => Self::Status,
            "ephemeralcontainers" => Self::EphemeralContainers,
            "resize" => Self::Resize,
            "finalize" | "approval" => Self::Own,
            _ => Self::Object,
        }
    }
}

/// State between the two rounds of one request.
#[derive(Default)]
pub(crate) struct Rounds {
    /// 1 in the second round, in which only reinvocable ones are called.
    round: usize,
    /// True if a policy or a webhook changed the object, so that there is a second round.
    changed: bool,
    policies: Reinvocation,
    webhooks: Reinvocation,
}

/// Reinvocation of policies and webhooks after later ones changed the object
/// (`pkg/admission/plugin/webhook/mutating/reinvocationcontext.go`).
#[derive(Default)]
struct Reinvocation {
    /// Reinvocable webhooks called since the last change.
    asked: BTreeSet<String>,
    /// Webhooks to be reinvoked.
    again: BTreeSet<String>,
    /// The object as they left it.
    made: Option<Box<dyn Object>>,
}

impl Reinvocation {
    /// Begins a round, the second with the changes of built-in steps since the first.
    fn begin(&mut self, round: usize, object: Option<&dyn Object>, asked: &Asked<'_>) {
        let is_same = match (self.made.as_deref(), object) {
            (Some(made), Some(object)) => asked.is_same(made, object),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if round > 0 && !is_same {
            self.change();
        }
    }

    /// True if a webhook or policy is called in the round. One that was not called in the first is
    /// not called in the second, even if it matches now.
    fn is_due(&self, round: usize, id: &str) -> bool {
        round == 0 || self.again.contains(id)
    }

    /// Records that a webhook or policy changed the object.
    fn change(&mut self) {
        self.again.append(&mut self.asked);
    }

    /// Ends a round.
    fn end(&mut self, object: Option<&dyn Object>) {
        self.made = object.map(Object::clone_box);
    }
}

type Mutating = fn(&mut Review<'_>, &mut dyn Object) -> Result<(), Failure>;
type Validating = fn(&mut Review<'_>, &dyn Object) -> Result<(), Failure>;

/// Mutating steps, each under the name of upstream's plugin.
const MUTATING: &[(&str, Mutating)] = &[
    ("NamespaceLifecycle", namespace::check),
    ("LimitRanger", limits::fill_in),
    ("ServiceAccount", service_account::admit),
    ("NodeRestriction", restrict_node),
    ("TaintNodesByCondition", tolerations::taint),
    ("Priority", priority::resolve),
    ("DefaultTolerationSeconds", tolerations::add),
    ("DefaultStorageClass", classes::of_claim),
    ("StorageObjectInUseProtection", protection::protect),
    ("RuntimeClass", classes::of_runtime),
    ("DefaultIngressClass", classes::of_ingress),
    ("PodTopologyLabels", topology::label),
];

/// Steps that upstream leaves to the kinds' strategies and allocators, after admission.
const ALLOCATING: &[Mutating] = &[
    service::allocate,
    certificates::note,
    namespace::check_admin_access,
    classes::date_phase,
];

const VALIDATING: &[(&str, Validating)] = &[
    ("CertificateApproval", certificates::check),
    ("LimitRanger", limits::check),
    ("ServiceAccount", service_account::check),
    ("PodSecurity", pod_security::check),
    ("Priority", priority::check_class),
    ("PersistentVolumeClaimResize", classes::may_grow),
    ("PodResizeValidator", resize::check),
    (OWN, confirm_grant),
];

const OWN: &str = "Skiff";

/// Object in the admission chain.
pub(crate) struct Review<'a> {
    pub(crate) context: &'a Context,
    /// Stored object; `None` on creation.
    pub(crate) old: Option<&'a dyn Object>,
    /// Part of the object that the request may change.
    pub(crate) part: Part,
    /// Text of the object's managed fields.
    managed: &'a str,
    /// Object before mutating webhooks: their changes belong to no field manager.
    unmutated: Option<Box<dyn Object>>,
    /// Texts for `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// Annotations for the audit log.
    annotations: Vec<(&'static str, String)>,
    terms: Terms,
}

/// Preconditions of the commit.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    /// The namespace as the chain saw it.
    pub(crate) within: Option<Seen>,
    /// Writes to other objects in the same commit.
    pub(crate) also: Vec<Write>,
}

impl<'a> Review<'a> {
    /// The review of a new object.
    pub(crate) fn of_new(context: &'a Context, managed: &'a str) -> Self {
        Self {
            context,
            old: None,
            part: Part::Object,
            managed,
            unmutated: None,
            warnings: Vec::new(),
            annotations: Vec::new(),
            terms: Terms::default(),
        }
    }

    /// The review of a change.
    pub(crate) fn of_change(context: &'a Context, old: &'a dyn Object, part: Part, managed: &'a str) -> Self {
        Self {
            old: Some(old),
            part,
            ..Self::of_new(context, managed)
        }
    }

    /// Runs the mutating steps, policies and webhooks. Built-in steps run once more on the changes
    /// of the latter, as in upstream's `pkg/admission/reinvocation.go`.
    ///
    /// # Errors
    /// 403, 404, and those of webhooks
    pub(crate) async fn mutate(&mut self, object: &mut Box<dyn Object>) -> Result<(), Failure> {
        self.fill_in(&mut **object)?;
        if !webhooks::mutates(self.context) {
            return Ok(());
        }
        let before = self.old.map(|_old| object.clone_box());
        let mut rounds = Rounds::default();
        self.ask_mutating(object, &mut rounds).await?;
        if rounds.changed {
            self.unmutated = before;
            self.fill_in(&mut **object)?;
            rounds.round = 1;
            self.ask_mutating(object, &mut rounds).await?;
            self.warnings.extend(owners::once(object.metadata_mut(), true));
        }
        Ok(())
    }

    /// Calls mutating webhooks for requests without built-in steps.
    ///
    /// # Errors
    /// Errors of webhooks
    pub(crate) async fn mutate_by_webhooks(&mut self, object: &mut Box<dyn Object>) -> Result<(), Failure> {
        if !webhooks::mutates(self.context) {
            return Ok(());
        }
        let mut rounds = Rounds::default();
        self.ask_mutating(object, &mut rounds).await?;
        if rounds.changed {
            rounds.round = 1;
            self.ask_mutating(object, &mut rounds).await?;
        }
        Ok(())
    }

    async fn ask_mutating(&mut self, object: &mut Box<dyn Object>, rounds: &mut Rounds) -> Result<(), Failure> {
        let asked = Asked::to_write(
            self.context,
            &self.context.registration,
            &**object,
            self.old,
            self.managed,
        );
        Box::pin(webhooks::mutate(&asked, Some(object), rounds)).await
    }

    fn fill_in(&mut self, object: &mut dyn Object) -> Result<(), Failure> {
        self.run(Half::Admit, MUTATING, |review, step| step(review, object))
    }

    /// Runs the steps of plugins that are not disabled, and measures each.
    fn run<S: Copy>(
        &mut self,
        half: Half,
        steps: &[(&str, S)],
        mut perform: impl FnMut(&mut Self, S) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let context = self.context;
        let mut watch = Watch::start(&context.server.metrics.admission, half, self.is_new());
        let outcome = steps.iter().try_for_each(|(plugin, step)| {
            if !context.server.options.admits(plugin) {
                return Ok(());
            }
            let outcome = perform(self, *step);
            watch.lap(plugin, outcome.is_err());
            outcome
        });
        watch.stop(outcome.is_err());
        outcome
    }

    /// Allocates cluster resources for the prepared object.
    ///
    /// # Errors
    /// 422, 500
    pub(crate) fn allocate(&mut self, object: &mut dyn Object) -> Result<(), Failure> {
        ALLOCATING.iter().try_for_each(|step| step(self, object))
    }

    /// Runs the validating steps, policies and webhooks.
    ///
    /// # Errors
    /// 403, 422, and those of webhooks
    pub(crate) async fn validate(&mut self, object: &dyn Object) -> Result<(), Failure> {
        self.run(Half::Validate, VALIDATING, |review, step| step(review, object))?;
        if !webhooks::validates(self.context) {
            return Ok(());
        }
        let asked = Asked::to_write(self.context, &self.context.registration, object, self.old, self.managed);
        Box::pin(webhooks::validate(&asked, Some(object))).await
    }

    /// Object as the client made it, if webhooks changed it.
    pub(crate) fn take_unmutated(&mut self) -> Option<Box<dyn Object>> {
        self.unmutated.take()
    }

    /// Ends the review of an admitted object; `None` for one that this change removes. Quotas are
    /// last, so that rejected requests are never charged.
    ///
    /// # Errors
    /// 403
    pub(crate) fn end(mut self, object: Option<&dyn Object>) -> Result<Terms, Failure> {
        let mut watch = Watch::start(&self.context.server.metrics.admission, Half::Validate, self.is_new());
        let charged = quota::charge(self.context, self.old, object);
        watch.lap("ResourceQuota", charged.is_err());
        self.terms.also.extend(charged?);
        self.context.warnings.extend(self.warnings);
        let annotations = self.annotations.into_iter();
        self.context
            .annotations
            .extend(annotations.map(|(name, text)| (name.into(), text)));
        Ok(self.terms)
    }

    /// Notes something in the audit log.
    fn annotate(&mut self, name: &'static str, text: String) {
        self.annotations.push((name, text));
    }

    /// True if the object itself is written, not a subresource.
    fn is_of_object(&self) -> bool {
        self.part == Part::Object && self.context.info.subresource.is_empty()
    }

    /// True if an object is being created.
    fn is_new(&self) -> bool {
        self.old.is_none()
    }

    /// 403 about the object.
    fn forbid(&self, object: &dyn Object, because: impl Into<String>) -> Failure {
        self.context.forbidden(shown_name(object), because)
    }
}

/// The name in messages about an object, which may have none yet (`extractResourceName` in
/// `staging/src/k8s.io/apiserver/pkg/admission/errors.go`).
fn shown_name(object: &dyn Object) -> &str {
    let metadata = object.metadata();
    let names = [&metadata.name, &metadata.generate_name].into_iter().flatten();
    names
        .map(String::as_str)
        .find(|name| !name.is_empty())
        .unwrap_or("Unknown")
}

/// Returns the spec of an object that is a pod.
fn pod_spec(object: &mut dyn Object) -> Option<&mut PodSpec> {
    object.as_any_mut().downcast_mut::<Pod>()?.spec.as_mut()
}

/// `NodeRestriction` for new objects.
fn restrict_node(review: &mut Review<'_>, object: &mut dyn Object) -> Result<(), Failure> {
    if review.is_new() {
        node::may_create(review.context, object)?;
    }
    Ok(())
}

/// Rejects grants that exceed the caller's own rights.
fn confirm_grant(review: &mut Review<'_>, object: &dyn Object) -> Result<(), Failure> {
    escalation::check(review.context, object, review.old)
}

/// An update's namespace must exist.
///
/// # Errors
/// 404
pub(crate) fn on_update(context: &Context) -> Result<(), Failure> {
    namespace::exists(context)
}
