//! Bootstrap signer: signs `kube-public/cluster-info` with each bootstrap token, so that new nodes
//! that know the token can verify it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use controlplane_plan::step::CONFIG_MAPS;
use http::Method;
use k8s_openapi::jiff::Timestamp;
use ring::hmac;
use serde_json::{Value, json};
use tracing::debug;

use crate::machinery::cache::Key;
use crate::machinery::driver::Context;
use crate::machinery::kinds::Caches;
use crate::machinery::kinds::contents::{BOOTSTRAP, CLUSTER_INFO, Contents, KUBE_PUBLIC};
use crate::machinery::queue::Queue;
use crate::machinery::request::{self, Error, JSON};

const SIGNED: &str = "kubeconfig";
/// Prefix of signatures' keys, before the token id.
const SIGNATURE: &str = "jws-kubeconfig-";
/// Namespace of the tokens.
const HOME: &str = "kube-system";
/// Retry delay after a failure.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Wakes the `ConfigMap` when it or a token changes.
pub(crate) fn listen(caches: &Arc<Caches>) -> Arc<Queue<Key>> {
    let queue: Arc<Queue<Key>> = Queue::new("bootstrap_signer_queue");
    caches
        .config_maps
        .wake_if(&queue, |map| Key::of(&map.metadata) == own());
    let wake = queue.clone();
    caches.secrets.listen(move |change| {
        let is_token =
            |secret: &Contents| secret.kind == BOOTSTRAP && secret.metadata.namespace.as_deref() == Some(HOME);
        if change.sides().any(is_token) {
            wake.push(own());
        }
    });
    queue
}

fn own() -> Key {
    Key::new(KUBE_PUBLIC, CLUSTER_INFO)
}

/// Runs the signer forever.
pub(crate) async fn run(context: Context, queue: Arc<Queue<Key>>) {
    context.caches.synced().await;
    loop {
        let key = queue.next().await;
        let signed = sign(&context, &key).await;
        queue.done(&key);
        if let Err(error) = signed {
            debug!(object = %key, %error, "not signed");
            queue.push_after(key, AGAIN);
        }
    }
}

async fn sign(context: &Context, key: &Key) -> Result<(), Error> {
    let Some(map) = context.caches.config_maps.get(key) else {
        return Ok(());
    };
    let secrets = context.caches.secrets.in_namespace(HOME);
    let tokens = secrets.iter().filter_map(|secret| token(secret, (context.clock)()));
    let Some(wanted) = signatures(&map.data, tokens.collect()) else {
        return Ok(());
    };
    let mut object: Value = match request::get(&context.client, &CONFIG_MAPS, KUBE_PUBLIC, CLUSTER_INFO).await {
        Err(error) if error.code() == 404 => return Ok(()),
        object => object?,
    };
    if object.pointer("/data/kubeconfig").and_then(Value::as_str) != map.data.get(SIGNED).map(String::as_str) {
        // The cache lags; its next change wakes this again.
        return Ok(());
    }
    if let Some(Value::Object(data)) = object.get_mut("data") {
        data.retain(|key, _| !key.starts_with(SIGNATURE));
        data.extend(wanted.into_iter().map(|(key, signature)| (key, signature.into())));
    }
    let path = request::path(&CONFIG_MAPS, KUBE_PUBLIC, CLUSTER_INFO, "");
    let body = object.to_string().into_bytes();
    request::send::<Value>(&context.client, Method::PUT, path, JSON, body).await?;
    Ok(())
}

/// Signatures for a `ConfigMap` with this content, or `None` if it has exactly these.
fn signatures(data: &BTreeMap<String, String>, tokens: Vec<(String, String)>) -> Option<BTreeMap<String, String>> {
    let content = data.get(SIGNED)?;
    let wanted: BTreeMap<String, String> = tokens
        .into_iter()
        .map(|(id, secret)| (format!("{SIGNATURE}{id}"), signature(content, &id, &secret)))
        .collect();
    let there = data.iter().filter(|(key, _)| key.starts_with(SIGNATURE));
    (!there.eq(&wanted)).then_some(wanted)
}

/// Id and secret of a token that may sign.
fn token(secret: &Contents, now: Timestamp) -> Option<(String, String)> {
    let value = |key: &str| {
        let value = STANDARD.decode(secret.data.get(key)?).ok()?;
        String::from_utf8(value).ok().filter(|value| !value.is_empty())
    };
    if secret.kind != BOOTSTRAP || value("usage-bootstrap-signing")? != "true" {
        return None;
    }
    let (id, own) = (value("token-id")?, value("token-secret")?);
    let is_over = value("expiration").is_some_and(|end| end.parse::<Timestamp>().map_or(true, |end| end <= now));
    let is_named = secret.metadata.name.as_deref()?.strip_prefix("bootstrap-token-") == Some(&id);
    (is_named && !is_over).then_some((id, own))
}

/// A detached JSON web signature (RFC 7515).
fn signature(content: &str, id: &str, secret: &str) -> String {
    let header = json!({ "alg": "HS256", "kid": id }).to_string();
    let (header, content) = (URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{content}").as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &str = "Hello from the other side. I must have called a thousand times.";
    /// Value from upstream's own test.
    const SIGNED_CONTENT: &str =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";

    fn secret(change: impl FnOnce(&mut Value)) -> Contents {
        let mut object = json!({
            "metadata": { "name": "bootstrap-token-joshua", "namespace": HOME },
            "type": BOOTSTRAP,
            "data": {
                "token-id": STANDARD.encode("joshua"),
                "token-secret": STANDARD.encode("my voice is my passcode"),
                "usage-bootstrap-signing": STANDARD.encode("true"),
            },
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn signs(change: impl FnOnce(&mut Value)) -> bool {
        token(&secret(change), "2026-01-01T00:00:00Z".parse().unwrap()).is_some()
    }

    #[test]
    fn tokens_that_sign_are_whole_named_and_not_over() {
        let set = |key: &'static str, value: &'static str| {
            move |object: &mut Value| object["data"][key] = STANDARD.encode(value).into()
        };
        assert!(signs(|_| {}));
        assert!(signs(set("expiration", "2026-01-01T00:00:01Z")));
        assert!(!signs(set("expiration", "2025-12-31T00:00:00Z")));
        assert!(!signs(set("expiration", "tomorrow")));
        assert!(!signs(set("usage-bootstrap-signing", "yes")));
        assert!(!signs(set("token-id", "other")));
        assert!(!signs(set("token-secret", "")));
        assert!(!signs(|object| object["type"] = "Opaque".into()));
    }

    #[test]
    fn signatures_are_those_of_the_tokens() {
        let tokens = || vec![("joshua".to_owned(), "my voice is my passcode".to_owned())];
        let mut data = BTreeMap::from([
            (SIGNED.to_owned(), CONTENT.to_owned()),
            ("other".to_owned(), String::new()),
        ]);
        let wanted = signatures(&data, tokens()).unwrap();
        assert_eq!(
            wanted,
            BTreeMap::from([("jws-kubeconfig-joshua".to_owned(), SIGNED_CONTENT.to_owned())])
        );
        data.extend(wanted);
        assert_eq!(signatures(&data, tokens()), None, "signed already");
        assert_eq!(
            signatures(&data, Vec::new()),
            Some(BTreeMap::new()),
            "nobody signs any more"
        );
        data.insert("jws-kubeconfig-gone".to_owned(), "x".to_owned());
        assert_eq!(signatures(&data, tokens()).unwrap().len(), 1);
        data.remove(SIGNED);
        assert_eq!(signatures(&data, tokens()), None, "nothing to sign");
    }
}
