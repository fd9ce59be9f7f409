//! Cleaner of token Secrets that came with their accounts and are no longer used; looks once a day.

use std::time::Duration;

use api::pod::References;
use controlplane_plan::access::legacy_tokens::{INVALID_SINCE, TRACKING, Verdict, is_tracked, judge};
use controlplane_plan::step::{CONFIG_MAPS, PODS, PatchKind, SECRETS, SERVICE_ACCOUNTS, Target};
use http::Method;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use serde_json::json;
use tracing::{debug, info};

use super::{ACCOUNT_UID, annotation, target_of};
use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::kinds::contents::{ACCOUNT_NAME, Contents, TOKEN};
use crate::machinery::request::{self, Error, JSON};

/// Interval of the looks (`DefaultCleanerSyncInterval`).
const RESYNC_INTERVAL: Duration = Duration::from_hours(24);

/// Runs the cleaner forever. Accounts and pods are read as the manager, as upstream's caches do.
pub(crate) async fn run(context: Context, manager: kube::Client) {
    context.caches.synced().await;
    loop {
        if let Err(error) = clean(&context, &manager).await {
            debug!(%error, "token Secrets not cleaned");
        }
        tokio::time::sleep(RESYNC_INTERVAL).await;
    }
}

pub(super) async fn clean(context: &Context, manager: &kube::Client) -> Result<(), Error> {
    let tracking: Contents = request::get(&context.client, &CONFIG_MAPS, "kube-system", TRACKING).await?;
    let since = tracking.data.get("since");
    if since.is_none_or(|since| !is_tracked(since, (context.clock)())) {
        return Ok(());
    }
    let secrets = context.caches.secrets.all();
    for secret in secrets.iter().filter(|secret| secret.kind == TOKEN) {
        if let Err(error) = settle(context, manager, secret).await {
            debug!(secret = %Key::of(&secret.metadata), %error, "not cleaned");
        }
    }
    Ok(())
}

async fn settle(context: &Context, manager: &kube::Client, secret: &Contents) -> Result<(), Error> {
    let verdict = judge(&secret.metadata, (context.clock)());
    let target = target_of(SECRETS, &secret.metadata);
    let is_kept = verdict == Verdict::Keep
        || !is_listed(manager, secret, &target).await?
        || is_referred_to(manager, &target).await?;
    if is_kept {
        return Ok(());
    }
    info!(secret = %Key::of(&secret.metadata), ?verdict, "token of an account unused for a year");
    match verdict {
        Verdict::Keep => {}
        Verdict::Mark(day) => {
            let body = json!({ "metadata": { "uid": target.uid, "labels": { INVALID_SINCE: day } } });
            request::patch(&context.client, &target, None, PatchKind::Merge, &body).await?;
        }
        Verdict::Delete => {
            let version = secret.metadata.resource_version.as_deref();
            request::delete(&context.client, &target, version, None, None).await?;
        }
    }
    Ok(())
}

/// True if the account of a Secret lists it, as that of an auto-generated one does.
async fn is_listed(manager: &kube::Client, secret: &Contents, target: &Target) -> Result<bool, Error> {
    let Some(name) = annotation(secret, ACCOUNT_NAME).filter(|name| !name.is_empty()) else {
        return Ok(false);
    };
    let account = request::get(manager, &SERVICE_ACCOUNTS, &target.namespace, name).await;
    let account: ServiceAccount = match account {
        Err(error) if error.code() == 404 => return Ok(false),
        account => account?,
    };
    let uid = annotation(secret, ACCOUNT_UID).unwrap_or_default();
    let is_meant = uid.is_empty() || account.metadata.uid.as_deref() == Some(uid);
    let mut secrets = account.secrets.iter().flatten();
    Ok(is_meant && secrets.any(|own| own.name.as_ref() == Some(&target.name)))
}

async fn is_referred_to(manager: &kube::Client, secret: &Target) -> Result<bool, Error> {
    let path = request::path(&PODS, &secret.namespace, "", "");
    let pods: List<Pod> = request::send(manager, Method::GET, path, JSON, Vec::new()).await?;
    let mut specs = pods.items.iter().filter_map(|pod| pod.spec.as_ref());
    Ok(specs.any(|spec| References::of(spec).secrets.contains(secret.name.as_str())))
}
