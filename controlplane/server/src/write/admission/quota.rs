//! `ResourceQuota`: usage is charged and released in the same commit that stores the object. So
//! `status.used` is always exact, and no two creations share the remaining quota.

use std::collections::BTreeMap;

use api::Object;
use api::pod::Resources;
use api::quantity::Quantity;
use api::quota;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use store::{Entry, Prefix, Write};
use tokio::sync::MutexGuard;

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object;

fn quotas(context: &Context) -> Prefix {
    Prefix::namespace("", "resourcequotas", &context.info.namespace)
}

fn is_limited(context: &Context) -> bool {
    context.registration.scope == api::kind::Scope::Namespaced
        && context.server.options.admits("ResourceQuota")
        && context.store().has_any(&quotas(context))
}

/// Waits for the namespace's turn, if it has quotas: each commit would make all concurrent ones in
/// its namespace start over. The guard must be held until the commit is done.
pub(crate) async fn turn(context: &Context) -> Option<MutexGuard<'_, ()>> {
    if !is_limited(context) {
        return None;
    }
    context.server.quota_queues.turn(&context.info.namespace).await
}

/// The changes of quotas that go with a change of an object: nothing before is a creation, nothing after a removal.
///
/// # Errors
/// 403 when a quota would be exceeded.
pub(crate) fn charge(
    context: &Context,
    before: Option<&dyn Object>,
    after: Option<&dyn Object>,
) -> Result<Vec<Write>, Failure> {
    if !is_limited(context) {
        return Ok(Vec::new());
    }
    let change = Affected { context, before, after };
    let mut writes = Vec::new();
    for entry in context.store().present(&quotas(context)) {
        let Ok(mut quota) = serde_json::from_slice::<ResourceQuota>(&entry.bytes) else {
            continue;
        };
        if change.settle(&mut quota)? && !change.is_itself(&entry) {
            writes.push(update(&entry, &mut quota)?);
        }
    }
    Ok(writes)
}

fn update(entry: &Entry, quota: &mut ResourceQuota) -> Result<Write, Failure> {
    let registration = api::find("", "v1", "resourcequotas").ok_or(Failure::NoSuchResource)?;
    let (value, attributes) = object::encode(registration, quota, object::managed(entry))?;
    Ok(Write::Update {
        key: entry.key.clone(),
        value,
        attributes,
        expected: entry.revision,
    })
}

/// A change, as quotas look at it.
struct Affected<'a> {
    context: &'a Context,
    before: Option<&'a dyn Object>,
    after: Option<&'a dyn Object>,
}

impl Affected<'_> {
    /// True if the quota is the object of the request itself.
    fn is_itself(&self, quota: &Entry) -> bool {
        let object = self.before.or(self.after);
        let name = object.and_then(|object| object.metadata().name.as_deref());
        let own = (self.context.registration.group, self.context.registration.plural);
        own == ("", "resourcequotas") && name == Some(quota.key.name())
    }

    fn is_about(&self, name: &str) -> bool {
        let storage = &self.context.registration.storage;
        quota::is_about(storage.group, storage.plural, name)
    }

    fn usage(&self, quota: &ResourceQuota, object: Option<&dyn Object>) -> Resources {
        let storage = &self.context.registration.storage;
        object
            .filter(|object| quota::covers(quota, *object))
            .map(|object| quota::usage(storage.group, storage.plural, object))
            .unwrap_or_default()
    }

    /// Brings the quota's `used` up to date; whether it changed.
    fn settle(&self, quota: &mut ResourceQuota) -> Result<bool, Failure> {
        let mut hard = amounts(quota.status.as_ref().and_then(|status| status.hard.as_ref()));
        hard.retain(|name, _| self.is_about(name));
        let mut used = amounts(quota.status.as_ref().and_then(|status| status.used.as_ref()));
        let (before, after) = (self.usage(quota, self.before), self.usage(quota, self.after));
        if self.before.is_none() && !after.is_empty() {
            self.check_known(quota, &hard, &used)?;
        }
        let of = |amounts: &Resources, name: &String| amounts.get(name).copied().unwrap_or(Quantity::ZERO);
        let (mut exceeded, mut changed) = (Vec::new(), Vec::new());
        // A status is not refused, as upstream's plugin asks no quota about one.
        let refuses = self.context.info.subresource != "status";
        for (name, limit) in &hard {
            let (old, new, now) = (of(&before, name), of(&after, name), of(&used, name));
            let next = now.plus(new).minus(old).max(Quantity::ZERO);
            if refuses && new > old && next > *limit {
                exceeded.push([(name, new.minus(old)), (name, now), (name, *limit)]);
            } else if new != old {
                changed.push((name.clone(), next));
            }
        }
        if !exceeded.is_empty() {
            let list = |column: usize| {
                let cells = exceeded.iter().filter_map(|row| row.get(column));
                let cells: Vec<String> = cells.map(|(name, amount)| format!("{name}={amount}")).collect();
                cells.join(",")
            };
            let because = format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                name(quota),
                list(0),
                list(1),
                list(2)
            );
            return Err(self.forbid(because));
        }
        let is_changed = !changed.is_empty();
        used.extend(changed);
        let texts = used.into_iter().map(|(name, amount)| (name, amount.to_text()));
        quota.status.get_or_insert_default().used = Some(texts.collect());
        Ok(is_changed)
    }

    /// A creation needs a quota that has been counted, and must state what the quota limits.
    fn check_known(&self, quota: &ResourceQuota, hard: &Resources, used: &Resources) -> Result<(), Failure> {
        let names = || hard.keys().map(String::as_str);
        if let Some(missing) = self.after.and_then(|object| quota::unstated(object, names())) {
            return Err(self.forbid(format!("failed quota: {}: {missing}", name(quota))));
        }
        let unknown: Vec<&str> = names().filter(|name| !used.contains_key(*name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let (name, unknown) = (name(quota), unknown.join(","));
        Err(self.forbid(format!("status unknown for quota: {name}, resources: {unknown}")))
    }

    fn forbid(&self, because: String) -> Failure {
        let object = self.after.or(self.before);
        let name = object.and_then(|object| object.metadata().name.clone());
        self.context.forbidden(&name.unwrap_or_default(), because)
    }
}

fn name(quota: &ResourceQuota) -> String {
    quota.metadata.name.clone().unwrap_or_default()
}

fn amounts(texts: Option<&BTreeMap<String, Text>>) -> Resources {
    let texts = texts.into_iter().flatten();
    texts.map(|(name, text)| (name.clone(), Quantity::of(text))).collect()
}
