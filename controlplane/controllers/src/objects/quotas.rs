//! Quota controller: counts the usage of new or changed quotas. After that the server itself
//! updates `used` with every commit, so this only resyncs at long intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::pod::Resources;
use api::quantity::Quantity;
use api::quota;
use api::registration::Registration;
use controlplane_plan::step::{RESOURCE_QUOTAS, Resource};
use http::Method;
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::debug;

use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::elsewhere;
use crate::machinery::kinds::{Caches, defined, resource_of};
use crate::machinery::queue::Queue;
use crate::machinery::request::{self, Error, JSON, escape};

/// Interval between two full counts, as upstream.
const RESYNC: Duration = Duration::from_mins(5);
/// Delay after the first count: objects deleted meanwhile could not be subtracted yet.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// Delay after a failed count, and the longest after several.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(1));
/// Most attempts to write a count when the quota changes at the same time.
const TRIES: u32 = 16;
/// Page size of lists.
const PAGE: usize = 500;

/// Wakes new quotas, and those whose limits differ from the counted ones.
pub(crate) fn listen(caches: &Caches) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("resourcequota_primary");
    let wake = queue.clone();
    caches.quotas.listen(move |change| {
        if let Some(quota) = change.new
            && (change.old.is_none() || !is_counted(quota))
        {
            wake.push(Key::of(&quota.metadata));
        }
    });
    queue
}

/// True if the status has the limits of the spec.
fn is_counted(quota: &ResourceQuota) -> bool {
    let wanted = quota
        .spec
        .as_ref()
        .and_then(|spec| spec.hard.clone())
        .unwrap_or_default();
    let status = quota.status.clone().unwrap_or_default();
    let used = status.used.unwrap_or_default();
    status.hard.unwrap_or_default() == wanted && wanted.keys().all(|name| used.contains_key(name))
}

/// Runs the controller forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Key>>) {
    context.caches.synced().await;
    let mut attempts: BTreeMap<Key, u32> = BTreeMap::new();
    loop {
        let key = queue.next().await;
        let counted = count(&context, &key).await;
        queue.done(&key);
        let tried = attempts.remove(&key).unwrap_or(0);
        if let Err(error) = &counted {
            debug!(quota = %key, %error, "not counted");
        }
        let delay = match counted {
            Ok(Counted::Gone) => continue,
            Ok(Counted::First) => SECOND_LOOK,
            Ok(Counted::Again) => RESYNC,
            Ok(Counted::Partly) | Err(_) => {
                attempts.insert(key.clone(), tried.saturating_add(1));
                RETRY.0.saturating_mul(1 << tried.min(16)).min(RETRY.1)
            }
        };
        queue.push_after(key, delay);
    }
}

enum Counted {
    Gone,
    First,
    Again,
    /// Without objects of aggregated API servers that do not answer.
    Partly,
}

/// Counts the usage of a quota. Objects are charged and released meanwhile, and each change updates
/// the quota: so everything is counted at one revision, and the difference that the quota's own
/// count has gained or lost since then is added.
async fn count(context: &Context, key: &Key) -> Result<Counted, Error> {
    let Some((quota, revision)) = look(context, key).await? else {
        return Ok(Counted::Gone);
    };
    let first = !is_counted(&quota);
    let hard = limits(&quota);
    let mut counted: Resources = hard.keys().map(|name| (name.clone(), Quantity::ZERO)).collect();
    for row in api::KINDS {
        let about: Vec<&String> = hard
            .keys()
            .filter(|name| quota::is_about(row.group, row.plural, name))
            .collect();
        if about.is_empty() || !row.verbs.are_stored() || row.converts {
            continue;
        }
        for (name, amount) in usage(context, row, &quota, key, &revision).await? {
            if let Some(sum) = counted.get_mut(&name) {
                *sum = sum.plus(amount);
            }
        }
    }
    for definition in context.caches.definitions.all() {
        let own = defined(&definition).filter(|resource| resource.namespaced);
        let Some(resource) = own else { continue };
        let name = format!("count/{}.{}", resource.plural, resource.group);
        // Scopes apply to pods and claims.
        if let Some(sum) = counted.get_mut(&name).filter(|_| !has_scopes(&quota)) {
            let mut found = 0;
            each(context, &resource, key, &revision, |_object| found += 1).await?;
            *sum = Quantity::units(found);
        }
    }
    let whole = count_elsewhere(context, &quota, key, &mut counted).await;
    let mut tries = 0;
    loop {
        tries += 1;
        match settle(context, key, &quota, &counted).await {
            Err(error) if error.code() == 409 && tries < TRIES => {}
            Ok(true) if !first => return Ok(if whole { Counted::Again } else { Counted::Partly }),
            Ok(_) => return Ok(Counted::First),
            Err(error) if error.code() == 404 => return Ok(Counted::Gone),
            Err(error) => return Err(error),
        }
    }
}

/// Counts objects of aggregated API servers, which have revisions of their own. As with upstream, nobody refuses them,
/// and the last count holds while their server does not answer: the result is false then.
async fn count_elsewhere(context: &Context, quota: &ResourceQuota, key: &Key, counted: &mut Resources) -> bool {
    let services = context.caches.api_services.all();
    let is_elsewhere = |name: &str| {
        let group = name.strip_prefix("count/").and_then(|own| Some(own.split_once('.')?.1));
        let mut specs = services.iter().filter_map(|own| own.spec.as_ref());
        group.is_some() && specs.any(|spec| spec.service.is_some() && spec.group.as_deref() == group)
    };
    if has_scopes(quota) || !counted.keys().any(|name| is_elsewhere(name)) {
        return true;
    }
    for (name, sum) in counted.iter_mut().filter(|(name, _)| is_elsewhere(name)) {
        if sum.is_zero() {
            *sum = kept(quota, name).unwrap_or(*sum);
        }
    }
    let Ok((kinds, unknown)) = elsewhere::kinds(context).await else {
        return false;
    };
    let mut missing: BTreeSet<String> = counted.keys().filter(|name| is_elsewhere(name)).cloned().collect();
    let mut whole = true;
    for kind in kinds
        .iter()
        .filter(|kind| kind.namespaced && kind.supports(&["create", "list", "watch", "delete"]))
    {
        let name = format!("count/{}.{}", kind.plural, kind.group);
        let Some(sum) = counted.get_mut(&name) else {
            continue;
        };
        missing.remove(&name);
        let mut found = 0;
        let path = kind.collection(&key.namespace);
        match pages(context, &path, "", |_object| found += 1).await {
            Ok(()) => *sum = Quantity::units(found),
            Err(error) => {
                debug!(quota = %key, resource = kind.plural, %error, "not counted");
                // Who refuses will refuse again.
                whole &= matches!(error.code(), 400..=428 | 430..=499);
            }
        }
    }
    let mut away = unknown.iter().filter_map(|version| Some(version.split_once('/')?.0));
    whole && !away.any(|group| missing.iter().any(|name| name.ends_with(&format!(".{group}"))))
}

fn limits(quota: &ResourceQuota) -> BTreeMap<String, Text> {
    let spec = quota.spec.as_ref();
    spec.and_then(|spec| spec.hard.clone()).unwrap_or_default()
}

#[derive(Deserialize)]
struct List {
    metadata: ListMetadata,
    items: Vec<ResourceQuota>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

/// Reads the quota and the revision of the read.
async fn look(context: &Context, key: &Key) -> Result<Option<(ResourceQuota, String)>, Error> {
    let path = request::path(&RESOURCE_QUOTAS, &key.namespace, "", "");
    let path = format!("{path}?fieldSelector=metadata.name%3D{}", key.name);
    let list: List = request::send(&context.client, Method::GET, path, JSON, Vec::new()).await?;
    let revision = list.metadata.resource_version;
    Ok(list.items.into_iter().next().map(|quota| (quota, revision)))
}

/// Writes the count made when the quota was `then`, plus later changes; returns true if the quota's
/// limits are still the same.
async fn settle(context: &Context, key: &Key, then: &ResourceQuota, counted: &Resources) -> Result<bool, Error> {
    let mut quota: ResourceQuota = request::get(&context.client, &RESOURCE_QUOTAS, &key.namespace, &key.name).await?;
    let hard = limits(&quota);
    if quota.metadata.uid != then.metadata.uid || hard != limits(then) {
        return Ok(false);
    }
    let used: BTreeMap<String, Text> = counted
        .iter()
        .map(|(name, amount)| {
            let since = kept(&quota, name)
                .zip(kept(then, name))
                .map(|(now, then)| now.minus(then));
            let amount = since.map_or(*amount, |since| amount.plus(since)).max(Quantity::ZERO);
            (name.clone(), amount.to_text())
        })
        .collect();
    let status = quota.status.get_or_insert_default();
    if status.hard.as_ref() != Some(&hard) || status.used.as_ref() != Some(&used) {
        status.hard = Some(hard);
        status.used = Some(used);
        let path = request::path(&RESOURCE_QUOTAS, &key.namespace, &key.name, "status");
        let body = json!(quota).to_string().into_bytes();
        request::send::<Value>(&context.client, Method::PUT, path, JSON, body).await?;
    }
    Ok(true)
}

/// Usage in the quota's status, for resources that the server updates with each commit.
fn kept(quota: &ResourceQuota, name: &str) -> Option<Quantity> {
    let status = quota.status.as_ref()?;
    status.hard.as_ref()?.get(name)?;
    status.used.as_ref()?.get(name).map(Quantity::of)
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<Value>,
}

#[derive(Deserialize, Default)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

/// Usage by the objects of a kind at a revision.
async fn usage(
    context: &Context,
    row: &Registration,
    quota: &ResourceQuota,
    key: &Key,
    revision: &str,
) -> Result<Resources, Error> {
    let mut sum = Resources::new();
    each(context, &resource_of(row), key, revision, |item| {
        let Ok(object) = row.decode(item.to_string().as_bytes()) else {
            return;
        };
        if !quota::covers(quota, &*object) {
            return;
        }
        for (name, amount) in quota::usage(row.group, row.plural, &*object) {
            let so_far = sum.get(&name).copied().unwrap_or(Quantity::ZERO);
            sum.insert(name, so_far.plus(amount));
        }
    })
    .await?;
    Ok(sum)
}

fn has_scopes(quota: &ResourceQuota) -> bool {
    let spec = quota.spec.as_ref();
    spec.is_some_and(|spec| spec.scopes.as_ref().is_some_and(|own| !own.is_empty()) || spec.scope_selector.is_some())
}

/// Visits all objects of a kind in the quota's namespace, at a revision.
async fn each(
    context: &Context,
    resource: &Resource,
    key: &Key,
    revision: &str,
    seen: impl FnMut(Value) + Send,
) -> Result<(), Error> {
    let path = request::path(resource, &key.namespace, "", "");
    let first = format!("&resourceVersion={revision}&resourceVersionMatch=Exact");
    pages(context, &path, &first, seen).await
}

/// Visits all objects at a path; the first page is requested with these parameters.
async fn pages(context: &Context, path: &str, first: &str, mut seen: impl FnMut(Value) + Send) -> Result<(), Error> {
    let mut more = first.to_owned();
    loop {
        let path = format!("{path}?limit={PAGE}{more}");
        let page: Page = request::send(&context.client, Method::GET, path, JSON, Vec::new()).await?;
        page.items.into_iter().for_each(&mut seen);
        if page.metadata.next.is_empty() {
            return Ok(());
        }
        more = format!("&continue={}", escape(&page.metadata.next));
    }
}

#[cfg(test)]
mod tests;
