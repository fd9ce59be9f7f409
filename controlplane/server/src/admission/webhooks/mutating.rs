//! Mutating webhooks, one after the other (`pkg/admission/plugin/webhook/mutating/dispatcher.go`).

use std::borrow::Cow;
use std::collections::BTreeSet;

use api::Object;
use api::patch::json;
use serde_json::Value;
use serde_json::json;
use tokio::time::Instant;

use super::asked::Asked;
use super::matching::{Invocation, invocation};
use super::review::Verdict;
use super::{Refusal, ask, mutates, passes, settle};
use crate::failure::Failure;
use crate::metrics::Half;

/// State between the two rounds of one request.
#[derive(Default)]
pub(crate) struct Rounds {
    /// 1 in the second round, in which only those are asked who want to see what others changed.
    round: usize,
    /// Webhooks that want to be asked again, asked since the last change.
    asked: BTreeSet<String>,
    /// Those to be asked in the second round.
    again: BTreeSet<String>,
    changed: bool,
    /// The object after the first round.
    made: Option<Box<dyn Object>>,
}

impl Rounds {
    /// Tells whether a webhook changed the object, so that there is a second round.
    pub(crate) fn changed(&self) -> bool {
        self.changed
    }

    /// Begins the second round, with what built-in steps made of the object since the first.
    pub(crate) fn begin_second(&mut self, same: impl FnOnce(&dyn Object) -> bool) {
        self.round = 1;
        if !self.made.as_deref().is_some_and(same) {
            self.change();
        }
    }

    fn change(&mut self) {
        self.again.append(&mut self.asked);
        self.changed = true;
    }
}

/// Asks mutating webhooks about an object and takes over their patches; nothing for what has none.
///
/// # Errors
/// Those of the first that refuses.
pub(crate) async fn mutate(
    asked: &Asked<'_>,
    mut object: Option<&mut Box<dyn Object>>,
    rounds: &mut Rounds,
) -> Result<(), Failure> {
    if !mutates(asked.context) {
        return Ok(());
    }
    let hooks = asked.context.server.webhooks.mutating();
    for (index, hook) in hooks.iter().enumerate() {
        let Some(invocation) = invocation(hook, asked, object.as_deref().map(|object| &**object)).await? else {
            continue;
        };
        // Who was not asked in the first round is not asked in the second, though it may fit now.
        if rounds.round > 0 && !rounds.again.contains(&hook.id) {
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
            rounds.change();
        }
        if hook.webhook.reinvocation_policy.as_deref() == Some("IfNeeded") {
            rounds.asked.insert(hook.id.clone());
        }
        let key = format!("failed-open.mutation.webhook.admission.k8s.io/{place}");
        passes(asked, hook, outcome, key).map_err(Refusal::into_failure)?;
    }
    rounds.made = object.map(|object| object.clone_box());
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
    match asked.take(&document, form, object).await {
        Err(Failure::Internal { message }) => Err(told(message)),
        outcome => Ok(outcome?),
    }
}

/// 500 for what a webhook made wrong: no error of this server's own.
fn told(message: String) -> Refusal {
    let status = Box::new(Failure::Internal { message }.status());
    Refusal::Own(Failure::Told { status })
}

/// Tells the audit log what a webhook did.
fn note(asked: &Asked<'_>, invocation: &Invocation<'_>, place: &str, mutated: bool, verdict: Option<&Verdict>) {
    let hook = invocation.hook;
    let (configuration, webhook) = (&*hook.configuration, hook.name());
    let patch = verdict.filter(|verdict| !verdict.patch.is_empty());
    let patch = patch.and_then(|verdict| serde_json::from_slice::<Value>(&verdict.patch).ok());
    let patch = patch.filter(|patch| patch.as_array().is_some_and(|operations| !operations.is_empty()));
    let patched = patch.map(|patch| {
        let text = json!({
            "configuration": configuration, "webhook": webhook, "patch": patch, "patchType": "JSONPatch",
        });
        (format!("patch.webhook.admission.k8s.io/{place}"), text)
    });
    let text = json!({"configuration": configuration, "webhook": webhook, "mutated": mutated});
    let mutation = (format!("mutation.webhook.admission.k8s.io/{place}"), text);
    let all = patched.into_iter().chain([mutation]);
    let all = all.map(|(key, text)| (Cow::Owned(key), text.to_string()));
    asked.context.annotations.extend(all);
}
