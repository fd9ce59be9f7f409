//! Who may use the images that were pulled with credentials: pods that have the same, or that pull them with their own.
//!
//! What is on the node without having been pulled, or was pulled by nobody in particular, is everybody's.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use image::reference::Reference;
use image::{Credentials, Digest};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Secrets that are remembered for one image; the first ones go.
const KEYS: usize = 100;

/// What opens an image: a secret, or another one that holds the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    namespace: String,
    name: String,
    uid: String,
    /// Of what the registry is shown.
    digest: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str, uid: &str, credentials: &Credentials) -> Self {
        let shown = format!("{}\0{}", credentials.username, credentials.password);
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            digest: Digest::of(shown.as_bytes()).as_str().to_owned(),
        }
    }

    /// A secret stays the same when its contents change.
    fn opens_like(&self, other: &Self) -> bool {
        let of = |key: &Self| (key.namespace.clone(), key.name.clone(), key.uid.clone());
        self.digest == other.digest || of(self) == of(other)
    }
}

/// What opened an image so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    /// It was pulled without credentials.
    everybody: bool,
    keys: Vec<Key>,
}

/// By the ids of images, and the repositories that they came from: what came from elsewhere too has rights of its own.
type Records = BTreeMap<String, BTreeMap<String, Record>>;

/// Of all images that were pulled with credentials.
pub(crate) struct Rights {
    path: PathBuf,
    records: Mutex<Records>,
    /// Held while the records are written, so that the last ones are there last.
    writing: tokio::sync::Mutex<()>,
}

impl Rights {
    pub(crate) fn open(path: PathBuf) -> Self {
        let records = read(&path).unwrap_or_else(|error| {
            warn!(path = %path.display(), %error, "it is forgotten which images were pulled with credentials");
            Records::new()
        });
        Self {
            path,
            records: Mutex::new(records),
            writing: tokio::sync::Mutex::default(),
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every pod may use an image.
    pub(crate) fn are_everybodys(&self, id: &str, name: &str) -> bool {
        self.admit(id, name, &[])
    }

    /// Whether a pod that has these keys may.
    pub(crate) fn admit(&self, id: &str, name: &str, keys: &[Key]) -> bool {
        let opened = |record: &Record| {
            let mut known = record.keys.iter();
            record.everybody || known.any(|known| keys.iter().any(|key| key.opens_like(known)))
        };
        let records = self.records();
        let Some(repositories) = records.get(id) else {
            return true;
        };
        // Its id says nothing of where it came from.
        match Reference::parse(name) {
            Ok(reference) if Digest::parse(name).is_err() => {
                repositories.get(&reference.repository()).is_none_or(opened)
            }
            Ok(_) | Err(_) => repositories.values().any(opened),
        }
    }

    /// An image was pulled with a key, or without any: then it stays everybody's. Of those that are not on the node any more
    /// nothing is kept.
    pub(crate) async fn learn(
        &self,
        (id, name): (&str, &str),
        key: Option<&Key>,
        present: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        // At once, so that nobody meanwhile takes it for everybody's.
        if !self.change((id, name), key, present) {
            return Ok(());
        }
        let _turn = self.writing.lock().await;
        let (path, records) = (self.path.clone(), self.records().clone());
        // After a pull the disk may be busy for long.
        let written = tokio::task::spawn_blocking(move || write(&path, &records)).await;
        written.map_err(io::Error::other)?
    }

    /// Answers whether that changes anything.
    fn change(&self, (id, name): (&str, &str), key: Option<&Key>, present: impl Fn(&str) -> bool) -> bool {
        let Ok(reference) = Reference::parse(name) else {
            return false;
        };
        let mut records = self.records();
        let repositories = records.entry(id.to_owned()).or_default();
        let record = repositories.entry(reference.repository()).or_default();
        match key {
            _ if record.everybody => return false,
            None => record.everybody = true,
            Some(key) if record.keys.contains(key) => return false,
            Some(key) => {
                let surplus = record.keys.len().saturating_add(1).saturating_sub(KEYS);
                record.keys.drain(..surplus);
                record.keys.push(key.clone());
            }
        }
        records.retain(|known, _| known == id || present(known));
        true
    }
}

fn read(path: &Path) -> io::Result<Records> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Records::new()),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, records: &Records) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(&serde_json::to_vec(records)?)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "private:1";

    fn key(secret: &str, password: &str) -> Key {
        let credentials = Credentials {
            username: "me".to_owned(),
            password: password.to_owned(),
        };
        Key::new("team", secret, secret, &credentials)
    }

    #[tokio::test]
    async fn an_image_opens_to_who_could_pull_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("rights.json");
        let rights = Rights::open(path.clone());
        assert!(rights.are_everybodys("sha256:a", NAME), "nobody pulled it");
        rights.learn(("sha256:p", NAME), None, |_| true).await.unwrap();
        rights
            .learn(("sha256:p", NAME), Some(&key("one", "x")), |_| true)
            .await
            .unwrap();
        assert!(rights.are_everybodys("sha256:p", NAME), "it needs no key");
        rights
            .learn(("sha256:a", NAME), Some(&key("one", "x")), |_| true)
            .await
            .unwrap();

        let rights = Rights::open(path.clone());
        assert!(!rights.are_everybodys("sha256:a", NAME));
        assert!(!rights.admit("sha256:a", "docker.io/library/private:2", &[]));
        assert!(rights.are_everybodys("sha256:a", "elsewhere.example/private:1"));
        assert!(
            !rights.are_everybodys("sha256:a", Digest::of(b"a").as_str()),
            "by an id"
        );
        assert!(!rights.admit("sha256:a", NAME, &[key("two", "y")]));
        assert!(
            rights.admit("sha256:a", NAME, &[key("two", "y"), key("one", "y")]),
            "the same secret"
        );
        assert!(rights.admit("sha256:a", NAME, &[key("two", "x")]), "the same contents");
        rights
            .learn(("sha256:a", NAME), Some(&key("two", "y")), |_| true)
            .await
            .unwrap();
        assert!(rights.admit("sha256:a", NAME, &[key("three", "y")]));
        rights.learn(("sha256:a", NAME), None, |_| true).await.unwrap();
        assert!(Rights::open(path.clone()).are_everybodys("sha256:a", NAME));

        rights
            .learn(("sha256:b", NAME), Some(&key("one", "x")), |id| id != "sha256:a")
            .await
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("sha256:a") && text.contains("sha256:b"), "{text}");
        assert!(!text.contains("\"x\""), "no password: {text}");
    }
}
