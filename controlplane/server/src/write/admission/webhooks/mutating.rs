//! Mutating webhooks, one after the other (`pkg/admission/plugin/webhook/mutating/dispatcher.go`).

use std::borrow::Cow;

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
use crate::write::admission::{Rounds, policies};

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
