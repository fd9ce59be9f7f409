//! Tokens that new nodes join with: `ID.SECRET`, each kept in a Secret of `kube-system`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use store::{Key, Store};

use crate::authn::identity::User;

const KIND: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

#[derive(Deserialize)]
struct Partial {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    metadata: PartialMetadata,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMetadata {
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

/// The user behind a token of this form, if there is one.
pub(super) fn authenticate(store: &Store, token: &str, now: Timestamp) -> Option<User> {
    let (id, secret) = split(token)?;
    let key = Key::new("", "secrets", "kube-system", &format!("bootstrap-token-{id}")).ok()?;
    let object: Partial = serde_json::from_slice(&store.get(&key)?.bytes).ok()?;
    if object.kind != KIND || object.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let value = |name: &str| {
        let bytes = STANDARD.decode(object.data.get(name)?).ok()?;
        String::from_utf8(bytes).ok()
    };
    let own = value("token-secret").unwrap_or_default();
    // Comparing digests reveals nothing about the secrets by its time.
    if Sha256::digest(own) != Sha256::digest(secret) {
        return None;
    }
    if value("token-id")? != id || value("usage-bootstrap-authentication")? != "true" {
        return None;
    }
    if let Some(end) = value("expiration").filter(|end| !end.is_empty()) {
        // An expiration that cannot be parsed counts as expired, as upstream does.
        let end: Timestamp = end.parse().ok()?;
        if end <= now {
            return None;
        }
    }
    let mut groups = vec![GROUP.to_owned()];
    for group in value("auth-extra-groups").unwrap_or_default().split(',') {
        if group.is_empty() {
            continue;
        }
        if !may_be_given(group) {
            return None;
        }
        groups.push(group.to_owned());
    }
    groups.sort_unstable();
    groups.dedup();
    Some(User::new(
        format!("system:bootstrap:{id}"),
        groups.iter().map(String::as_str),
    ))
}

/// `^([a-z0-9]{6})\.([a-z0-9]{16})$`
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

/// `\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`
fn may_be_given(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else {
        return false;
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    rest.len() <= 256
        && rest.bytes().all(|byte| plain(byte) || matches!(byte, b':' | b'-'))
        && rest.bytes().last().is_some_and(plain)
}
