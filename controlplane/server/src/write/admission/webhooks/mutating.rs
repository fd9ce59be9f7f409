//! Mutating webhooks, one after the other (`pkg/admission/plugin/webhook/mutating/dispatcher.go`).

use std::borrow::Cow;
use std::collections::BTreeSet;

use api::patch::json;
use api::{Object, go_json};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::asked::Asked;
use super::matching::{Invocation, invocation};
use super::review::Verdict;
use super::{Refusal, ask, asks_mutating, passes, settle};
use crate::ops::metrics::Half;
use crate::request::failure::Failure;
use crate::request::options::FieldValidation;
use crate::write::admission::policies;

/// State between the two rounds of one request.
#[derive(Default)]
pub(crate) struct Rounds {
    /// 1 in the second round, in which only reinvocable ones are called.
    pub(in crate::write::admission) round: usize,
    /// True if a policy or a webhook changed the object, so that there is a second round.
    pub(in crate::write::admission) changed: bool,
    pub(in crate::write::admission) policies: Reinvocation,
    webhooks: Reinvocation,
}

impl Rounds {
    /// True if a policy or a webhook changed the object, so that there is a second round.
    pub(crate) fn changed(&self) -> bool {
        self.changed
    }

    pub(crate) fn begin_second(&mut self) {
        self.round = 1;
    }
}

/// Reinvocation of policies and webhooks after later ones changed the object
/// (`pkg/admission/plugin/webhook/mutating/reinvocationcontext.go`).
#[derive(Default)]
pub(in crate::write::admission) struct Reinvocation {
    /// Reinvocable webhooks called since the last change.
    pub(in crate::write::admission) asked: BTreeSet<String>,
    /// Webhooks to be reinvoked.
    again: BTreeSet<String>,
    /// The object as they left it.
    made: Option<Box<dyn Object>>,
}

impl Reinvocation {
    /// Begins a round, the second with the changes of built-in steps since the first.
    pub(in crate::write::admission) fn begin(&mut self, round: usize, object: Option<&dyn Object>, asked: &Asked<'_>) {
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
    pub(in crate::write::admission) fn is_due(&self, round: usize, id: &str) -> bool {
        round == 0 || self.again.contains(id)
    }

    /// Records that a webhook or policy changed the object.
    pub(in crate::write::admission) fn change(&mut self) {
        self.again.append(&mut self.asked);
    }

    /// Ends a round.
    pub(in crate::write::admission) fn end(&mut self, object: Option<&dyn Object>) {
        self.made = object.map(Object::clone_box);
    }
}

/// Applies mutating policies, then calls mutating webhooks and applies their patches; does nothing
/// for requests without an object.
///
/// # Errors
/// The first rejection.
pub(crate) async fn mutate(
    asked: &Asked<'_>,
    mut object: Option<&mut Box<dyn Object>>,
    rounds: &mut Rounds,
) -> Result<(), Failure> {
    if policies::change(asked.context) {
        policies::mutate(asked, object.as_deref_mut(), rounds).await?;
    }
    if !asks_mutating(asked.context) {
        return Ok(());
    }
    rounds
        .webhooks
        .begin(rounds.round, object.as_deref().map(|object| &**object), asked);
    let hooks = asked.context.server.webhooks.mutating();
    for (index, hook) in hooks.iter().enumerate() {
        let Some(invocation) = invocation(hook, asked, object.as_deref().map(|object| &**object)).await? else {
            continue;
        };
        if !rounds.webhooks.is_due(rounds.round, &hook.id) {
            continue;
        }
        let began = Instant::now();
        let mut outcome = ask(asked, &invocation, object.as_deref().map(|object| &**object), true).await;
        let mut changed = Ok(false);
        if let Ok(verdict) = &outcome {
            changed = take(asked, &invocation, verdict, object.as_deref_mut()).await;
        }
        let place = format!("round_{}_index_{index}", rounds.round);
        if let Err(refusal) = changed {
            outcome = Err(refusal);
            changed = Ok(false);
        }
        settle(asked, hook, Half::Admit, began, &outcome);
        let changed = changed.unwrap_or(false);
        note(asked, &invocation, &place, changed, outcome.as_ref().ok());
        if changed {
            rounds.webhooks.change();
            rounds.changed = true;
        }
        if hook.webhook.reinvocation_policy.as_deref() == Some("IfNeeded") {
            rounds.webhooks.asked.insert(hook.id.clone());
        }
        let key = format!("failed-open.mutation.webhook.admission.k8s.io/{place}");
        passes(asked, hook, outcome, key).map_err(Refusal::into_failure)?;
    }
    rounds.webhooks.end(object.as_deref().map(|object| &**object));
    Ok(())
}

/// Applies a webhook's patch; whether the object changed.
async fn take(
    asked: &Asked<'_>,
    invocation: &Invocation<'_>,
    verdict: &Verdict,
    object: Option<&mut Box<dyn Object>>,
) -> Result<bool, Refusal> {
    let hook = invocation.hook;
    if verdict.patch.is_empty() {
        return Ok(false);
    }
    let undecodable = |error: &dyn std::fmt::Display| {
        let because = format!("received undecodable patch in webhook response: {error}");
        Refusal::calling(hook, &because, 503)
    };
    let patch: Value = serde_json::from_slice(&verdict.patch).map_err(|error| undecodable(&error))?;
    let operations = patch.as_array();
    let operations = operations.ok_or_else(|| undecodable(&json::mismatch(&patch, "jsonpatch.Patch")))?;
    if operations.is_empty() {
        return Ok(false);
    }
    let Some(object) = object else {
        let name = hook.name();
        return Err(told(format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    };
    if verdict.patch_type != "JSONPatch" {
        let because = format!("unsupported patch type {:?}", verdict.patch_type);
        return Err(Refusal::calling(hook, &because, 400));
    }
    let form = invocation.fit.form.as_ref();
    let shown = asked.shown(&**object, form).await?;
    let mut document: Value = serde_json::from_slice(&shown).map_err(Failure::internal)?;
    json::apply(&mut document, &patch).map_err(|error| told(error.to_string()))?;
    match asked.take(&document, form, object, FieldValidation::Ignore).await {
        Err(Failure::Internal { message }) => Err(told(message)),
        outcome => Ok(outcome?),
    }
}

/// 500 for an error of the webhook's side.
fn told(message: String) -> Refusal {
    let status = Box::new(Failure::Internal { message }.status());
    Refusal::Own(Failure::Told { status })
}

/// Text of an audit annotation (`MutationAuditAnnotation`, `PatchAuditAnnotation`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Effect<'a> {
    configuration: &'a str,
    webhook: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mutated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
}

/// Adds audit annotations about a webhook's effect.
fn note(asked: &Asked<'_>, invocation: &Invocation<'_>, place: &str, mutated: bool, verdict: Option<&Verdict>) {
    let effect = |mutated, patch: Option<Value>| Effect {
        configuration: &invocation.hook.configuration,
        webhook: invocation.hook.name(),
        mutated,
        patch_type: patch.is_some().then_some("JSONPatch"),
        patch,
    };
    let patch = verdict.filter(|verdict| !verdict.patch.is_empty());
    let patch = patch.and_then(|verdict| serde_json::from_slice::<Value>(&verdict.patch).ok());
    let patch = patch.filter(|patch| patch.as_array().is_some_and(|operations| !operations.is_empty()));
    let patched = patch.map(|patch| {
        let key = format!("patch.webhook.admission.k8s.io/{place}");
        (key, effect(None, Some(patch)))
    });
    let key = format!("mutation.webhook.admission.k8s.io/{place}");
    let mutation = (key, effect(Some(mutated), None));
    let all = patched.into_iter().chain([mutation]);
    let all = all.map(|(key, text)| (Cow::Owned(key), go_json::text(go_json::encode(&text))));
    asked.context.annotations.extend(all);
}
