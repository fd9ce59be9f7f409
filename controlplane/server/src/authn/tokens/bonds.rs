//! Objects that must still be there for a token to prove something.

use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use store::{Key, Store};

/// Seconds for which an object that is being deleted still counts: requests may be in progress.
const LEEWAY: i64 = 60;

/// A token's tie to an object.
#[derive(Debug)]
pub(super) struct Bond {
    key: Key,
    needs: Needs,
    /// The revision of the object that was found right, so that it is read only when it has changed.
    right_at: AtomicU64,
}

#[derive(Debug)]
enum Needs {
    /// The object of this uid.
    Uid(String),
    /// A Secret that holds the token itself.
    Token,
}

#[derive(Deserialize)]
struct Partial {
    #[serde(default)]
    metadata: PartialMetadata,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMetadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    deletion_timestamp: Option<Time>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    token: Option<String>,
}

impl Bond {
    pub(super) fn uid(key: Key, uid: &str) -> Self {
        Self::new(key, Needs::Uid(uid.to_owned()))
    }

    pub(super) fn contents(key: Key) -> Self {
        Self::new(key, Needs::Token)
    }

    fn new(key: Key, needs: Needs) -> Self {
        Self {
            key,
            needs,
            right_at: AtomicU64::new(0),
        }
    }

    /// True if the object is the one for which the token was issued.
    pub(super) fn holds(&self, store: &Store, token: &str, now: Timestamp) -> bool {
        let Some(entry) = store.get(&self.key) else {
            return false;
        };
        if self.right_at.load(Ordering::Relaxed) == entry.revision {
            return true;
        }
        let Ok(object) = serde_json::from_slice::<Partial>(&entry.bytes) else {
            return false;
        };
        let right = match &self.needs {
            Needs::Uid(uid) => !uid.is_empty() && *uid == object.metadata.uid,
            Needs::Token => {
                let held = object.data.and_then(|data| STANDARD.decode(data.token?).ok());
                held.is_some_and(|held| held == token.as_bytes())
            }
        };
        if let Some(Time(deleted)) = object.metadata.deletion_timestamp {
            return right && deleted.as_second() + LEEWAY >= now.as_second();
        }
        if right {
            self.right_at.store(entry.revision, Ordering::Relaxed);
        }
        right
    }
}
