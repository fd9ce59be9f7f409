//! Admission webhooks: calls the servers of the webhook configurations over HTTPS.
//!
//! 1. [`source`] keeps the webhooks of all configurations, in the order of their names.
//! 2. [`asked`] is the request as they see it, [`matching`] tells which of them it concerns, [`conditions`] what they say
//!    of it in CEL.
//! 3. [`review`] writes the question and reads the [`answer`]; [`client`] carries both, over connections by [`dial`].
//! 4. Mutating webhooks are asked one after the other ([`mutating`]), each with what those before made of the object;
//!    validating ones all at once ([`validate`]).
//!
//! No webhook sees the kinds that configure admission: one could keep itself from being removed.

pub(crate) mod answer;
pub(super) mod asked;
pub(crate) mod client;
pub(super) mod conditions;
pub(crate) mod dial;
pub(super) mod matching;
mod mutating;
pub(super) mod review;
pub(crate) mod source;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use api::{Kind, Object, Registration};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use thiserror::Error;
use tokio::time::Instant;
use uuid::Uuid;

pub(crate) use asked::Asked;
pub(crate) use conditions::faults;
pub(crate) use mutating::mutate;

use super::{Rounds, policies};
use crate::ops::audit::Layer;
use crate::ops::metrics::{Called, Half};
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;
use answer::Version;
use matching::Invocation;
use review::Verdict;
use source::{GROUP, Hook};

/// Reason for which a webhook rejects a request.
#[derive(Debug, Error)]
enum Refusal {
    /// The webhook could not be asked, or gave no answer that counts. The code is for metrics.
    #[error("failed calling webhook {webhook:?}: {because}")]
    Calling {
        webhook: String,
        because: String,
        code: u16,
    },
    /// The webhook said no.
    #[error("{}", .0.message.as_deref().unwrap_or_default())]
    Denied(Box<Status>),
    /// The fault is on this side.
    #[error(transparent)]
    Own(#[from] Failure),
}

impl Refusal {
    fn calling(hook: &Hook, because: &dyn fmt::Display, code: u16) -> Self {
        Self::Calling {
            webhook: hook.name().to_owned(),
            because: because.to_string(),
            code,
        }
    }

    /// The answer to the client.
    fn into_failure(self) -> Failure {
        match self {
            Self::Calling { .. } => Failure::Told {
                // An error of the webhook's side: it has been logged.
                status: Box::new(Failure::internal(&self).status()),
            },
            Self::Denied(status) => Failure::Told { status },
            Self::Own(failure) => failure,
        }
    }
}

/// True if there are mutating policies or webhooks that may look at a request.
pub(crate) fn mutates(context: &Context) -> bool {
    policies::change(context) || asks_mutating(context)
}

fn asks_mutating(context: &Context) -> bool {
    context.registration.group != GROUP
        && !context.server.webhooks.mutating().is_empty()
        && context.server.options.admits("MutatingAdmissionWebhook")
}

/// True if there are policies or validating webhooks that may look at a request.
pub(crate) fn validates(context: &Context) -> bool {
    policies::decide(context) || asks_validating(context)
}

fn asks_validating(context: &Context) -> bool {
    context.registration.group != GROUP
        && !context.server.webhooks.validating().is_empty()
        && context.server.options.admits("ValidatingAdmissionWebhook")
}

/// True if no webhook and no policy looks at a request.
pub(crate) fn are_idle(context: &Context) -> bool {
    !mutates(context) && !validates(context)
}

/// Evaluates validating policies, then calls validating webhooks.
///
/// # Errors
/// The first rejection.
pub(crate) async fn validate(asked: &Asked<'_>, object: Option<&dyn Object>) -> Result<(), Failure> {
    let context = asked.context;
    if policies::decide(context) {
        policies::validate(asked, object).await?;
    }
    if !asks_validating(context) {
        return Ok(());
    }
    let hooks = context.server.webhooks.validating();
    let mut invocations = Vec::new();
    for hook in hooks.iter() {
        invocations.extend(matching::invocation(hook, asked, object).await?);
    }
    let calls = invocations.iter().enumerate().map(|(index, invocation)| async move {
        let began = Instant::now();
        let outcome = ask(asked, invocation, object, false).await.map(|_verdict| ());
        settle(asked, invocation.hook, Half::Validate, began, &outcome);
        let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
        passes(asked, invocation.hook, outcome, key)
    });
    let mut calls: FuturesUnordered<_> = calls.collect();
    let mut first = Ok(());
    // All are heard, though one refusal is enough: their warnings and annotations count.
    while let Some(outcome) = calls.next().await {
        if let (Err(refusal), true) = (outcome, first.is_ok()) {
            first = Err(refusal);
        }
    }
    first.map_err(Refusal::into_failure)
}

/// Asks one webhook.
async fn ask(
    asked: &Asked<'_>,
    invocation: &Invocation<'_>,
    object: Option<&dyn Object>,
    mutates: bool,
) -> Result<Verdict, Refusal> {
    let hook = invocation.hook;
    let name = hook.name();
    if asked.dry_run && !matches!(hook.webhook.side_effects.as_str(), "None" | "NoneOnDryRun") {
        let because = format!("admission webhook {name:?} does not support dry run");
        return Err(Failure::bad_request(because).into());
    }
    let Some(version) = Version::of(&hook.webhook.admission_review_versions) else {
        let because =
            "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Err(Refusal::calling(hook, &because, 400));
    };
    let uid = Uuid::new_v4().to_string();
    let form = invocation.fit.form.as_ref();
    let new = match (object, &asked.connection) {
        (Some(object), _) => Some(asked.shown(object, form).await?),
        (None, Some(options)) => Some(options.to_string().into_bytes()),
        (None, None) => None,
    };
    let old = match asked.old {
        Some(old) => Some(asked.shown(old, form).await?),
        None => None,
    };
    let question = review::question(asked, &invocation.fit, version, &uid, (new.as_deref(), old.as_deref()))?;
    let seconds = hook
        .webhook
        .timeout_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    let left = asked.context.deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Failure::Late.into());
    }
    let limit = Duration::from_secs(seconds.unwrap_or(10)).min(left);
    let answer = hook.client.post(&asked.context.server.network, question, limit).await;
    let answer = answer.map_err(|error| Refusal::calling(hook, &error, 503))?;
    let verdict = review::verdict(version, &uid, mutates, &answer).map_err(|error| {
        let code = if let review::AnswerError::NoReview { code, .. } = &error {
            *code
        } else {
            503
        };
        Refusal::calling(hook, &error, code)
    })?;
    for (key, text) in &verdict.annotations {
        let key = format!("{name}/{key}");
        if api::names::qualified_name(&key).is_empty() {
            asked.context.annotations.extend([(Cow::Owned(key), text.clone())]);
        } else {
            tracing::warn!(webhook = name, key, "annotation's key has an invalid format");
        }
    }
    asked.context.warnings.extend(verdict.warnings.iter().cloned());
    if !verdict.allowed {
        return Err(Refusal::Denied(Box::new(review::refusal(name, verdict.status))));
    }
    Ok(verdict)
}

/// Counts a call.
fn settle<T>(asked: &Asked<'_>, hook: &Hook, half: Half, began: Instant, outcome: &Result<T, Refusal>) {
    let (error, code) = match outcome {
        Ok(_) => (None, 200),
        Err(Refusal::Calling { code, .. }) => (Some("calling_webhook_error"), *code),
        Err(Refusal::Denied(status)) => {
            let code = status.code.and_then(|code| u16::try_from(code).ok());
            (Some("no_error"), code.unwrap_or(0))
        }
        Err(Refusal::Own(_)) => (Some("apiserver_internal_error"), 0),
    };
    let open = hook.fails_open() && matches!(outcome, Err(Refusal::Calling { .. }));
    let layer = match half {
        Half::Admit => Layer::MutatingWebhook,
        Half::Validate => Layer::ValidatingWebhook,
    };
    let took = began.elapsed();
    asked.context.latencies.extend([(layer, took)]);
    asked.context.server.metrics.webhooks.called(&Called {
        webhook: hook.name(),
        half,
        operation: asked.operation.name(),
        took,
        rejected: outcome.is_err() && !open,
        error,
        code,
        open,
    });
}

/// Lets a request pass when a webhook with failure policy `Ignore` could not be called, and adds an
/// audit annotation.
fn passes<T: Default>(asked: &Asked<'_>, hook: &Hook, outcome: Result<T, Refusal>, key: String) -> Result<T, Refusal> {
    let refusal = match outcome {
        Err(refusal @ Refusal::Calling { .. }) => refusal,
        other => return other,
    };
    let open = hook.fails_open();
    tracing::warn!(webhook = hook.name(), open, error = %refusal, "webhook not called");
    asked.context.in_time()?;
    if !open {
        return Err(refusal);
    }
    asked
        .context
        .annotations
        .extend([(Cow::Owned(key), hook.name().to_owned())]);
    Ok(T::default())
}

/// Asks all policies and webhooks about something that has no object to change: a deletion or a connection.
///
/// # Errors
/// The first rejection.
pub(crate) async fn admit(asked: &Asked<'_>) -> Result<(), Failure> {
    mutate(asked, None, &mut Rounds::default()).await?;
    validate(asked, None).await
}

/// Calls all webhooks for an object that is never stored, a binding or a review; returns the object
/// that they produce.
///
/// # Errors
/// The first rejection.
pub(crate) async fn admit_unstored(
    context: &Context,
    row: &Registration,
    mut object: Box<dyn Object>,
) -> Result<Box<dyn Object>, Failure> {
    if are_idle(context) {
        return Ok(object);
    }
    let mut rounds = Rounds::default();
    let asked = Asked::to_write(context, row, &*object, None, "");
    mutate(&asked, Some(&mut object), &mut rounds).await?;
    if rounds.changed {
        rounds.round = 1;
        mutate(&asked, Some(&mut object), &mut rounds).await?;
    }
    validate(&asked, Some(&*object)).await?;
    Ok(object)
}

/// Like [`admit_unstored`], for the body of a subresource.
///
/// # Errors
/// The first rejection.
pub(crate) async fn admit_part<K: Kind>(context: &Context, row: &Registration, part: K) -> Result<K, Failure> {
    if are_idle(context) {
        return Ok(part);
    }
    let admitted = Box::pin(admit_unstored(context, row, Box::new(part))).await?;
    object::part(&*admitted)
}
