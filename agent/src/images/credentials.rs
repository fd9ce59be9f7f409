//! Access to images that were pulled with credentials: for pods with the same credentials, or that
//! pull them with their own.
//!
//! Images that are on the node without a pull, or were pulled without credentials, are available to
//! all pods. An intent is written before a pull with credentials begins, so that an image of an
//! interrupted pull is available to no pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use image::reference::Reference;
use image::{Credentials, Digest, Image};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Maximum number of secrets on record for one image; the oldest ones are dropped.
const KEYS: usize = 100;

/// Identity of credentials: a secret, or another one with the same content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    namespace: String,
    name: String,
    uid: String,
    /// Digest of the credentials.
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

    /// True for the same secret, even after its contents have changed.
    fn opens_like(&self, other: &Self) -> bool {
        let of = |key: &Self| (key.namespace.clone(), key.name.clone(), key.uid.clone());
        self.digest == other.digest || of(self) == of(other)
    }
}

/// Credentials that an image was pulled with so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    /// True if the image was pulled without credentials.
    everybody: bool,
    keys: Vec<Key>,
}

/// By image ID and repository: an image of several repositories has separate records.
type Records = BTreeMap<String, BTreeMap<String, Record>>;

/// Contents of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    /// Names of images that were about to be pulled with credentials.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    intents: BTreeSet<String>,
    /// IDs of the images that had those names before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    before: BTreeMap<String, String>,
    #[serde(flatten)]
    records: Records,
}

/// Pulls of one image name with credentials.
#[derive(Default)]
struct Pulls {
    under_way: usize,
    /// True if a pull was abandoned: it may have stored the image.
    left: bool,
    /// ID of the image that had the name when the first pull began: not stored by any of them.
    before: Option<String>,
}

#[derive(Default)]
struct Known {
    records: Records,
    intents: BTreeMap<String, Pulls>,
    /// True if the file is out of date.
    unwritten: bool,
}

/// Records of all images that were pulled with credentials.
pub(crate) struct ImagePullRecords {
    path: PathBuf,
    known: Mutex<Known>,
    /// Held while the file is written, so that the latest state is written last.
    writing: tokio::sync::Mutex<()>,
}

/// Recorded intent of a pull with credentials. Remains recorded if it is dropped without a result.
pub(crate) struct Intent<'a> {
    pull_records: &'a ImagePullRecords,
    name: Option<String>,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let mut known = self.pull_records.known();
            let pulls = known.intents.entry(name).or_default();
            pulls.under_way = pulls.under_way.saturating_sub(1);
            pulls.left = true;
        }
    }
}

impl ImagePullRecords {
    /// Reads the records of the images that are `present`. Images that an earlier process was about
    /// to pull are available to no pod; neither are all images from a registry if the records
    /// cannot be read.
    pub(crate) fn open(path: PathBuf, present: &[Arc<Image>]) -> Self {
        let read = read(&path);
        if let Err(error) = &read {
            let path = path.display();
            warn!(%path, %error, "it is forgotten what opens the images that were pulled; they are pulled again");
        }
        let unreadable = read.is_err();
        let Written {
            intents,
            before,
            mut records,
        } = read.unwrap_or_default();
        for image in present {
            let brought = |name: &String| intents.contains(name) && before.get(name) != Some(&image.id);
            let pulled = |name: &&String| unreadable || brought(name);
            let suspected = if unreadable && image.digests.is_empty() {
                BTreeSet::new()
            } else {
                let named = names(image).filter(pulled).filter_map(|name| repository(name));
                named.collect()
            };
            for repository in suspected {
                let repositories = records.entry(image.id.clone()).or_default();
                repositories.entry(repository).or_default();
            }
        }
        if (unreadable || !intents.is_empty())
            && let Err(error) = write(
                &path,
                &Written {
                    records: records.clone(),
                    ..Written::default()
                },
            )
        {
            warn!(path = %path.display(), %error, "it could not be written down who may use the images");
        }
        let known = Known {
            records,
            ..Known::default()
        };
        Self {
            path,
            known: Mutex::new(known),
            writing: tokio::sync::Mutex::default(),
        }
    }

    /// Numbers of names that are being pulled with credentials, and of images on record.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let known = self.known();
        (known.intents.len(), known.records.len())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if every pod may use an image.
    pub(crate) fn are_everybodys(&self, image: &Image, name: &str) -> bool {
        self.admit(image, name, &[])
    }

    /// True if a pod with these keys may use an image.
    pub(crate) fn admit(&self, image: &Image, name: &str, keys: &[Key]) -> bool {
        let opened = |record: &Record| {
            let mut known = record.keys.iter();
            record.everybody || known.any(|known| keys.iter().any(|key| key.opens_like(known)))
        };
        let known = self.known();
        let repositories = known.records.get(&image.id);
        let is_coming = |of: Option<&str>| {
            let brings = |pulls: &Pulls| pulls.before.as_ref() != Some(&image.id);
            let mut coming = names(image).filter(|name| known.intents.get(*name).is_some_and(brings));
            coming.any(|name| of.is_none_or(|of| repository(name).is_some_and(|own| own == of)))
        };
        // An ID has no repository.
        match repository(name) {
            Some(own) => match repositories.and_then(|repositories| repositories.get(&own)) {
                Some(record) => opened(record),
                None => !is_coming(Some(&own)),
            },
            None => match repositories {
                Some(repositories) => repositories.values().any(opened),
                None => !is_coming(None),
            },
        }
    }

    /// Records that an image is about to be pulled with keys. The pulled image is not available to
    /// all pods until its credentials are known; the one that already has the name, with the ID
    /// `before`, is not affected.
    pub(crate) async fn intend(&self, name: &str, before: Option<&str>) -> io::Result<Intent<'_>> {
        let name = carried(name);
        if let Some(name) = &name {
            let mut known = self.known();
            let pulls = known.intents.entry(name.clone()).or_insert_with(|| Pulls {
                before: before.map(str::to_owned),
                ..Pulls::default()
            });
            pulls.under_way = pulls.under_way.saturating_add(1);
        }
        let mut intent = Intent {
            pull_records: self,
            name,
        };
        if let Err(error) = self.write().await {
            // The pull does not begin.
            if let Some(name) = intent.name.take() {
                self.known().end(&name, false);
            }
            return Err(error);
        }
        Ok(intent)
    }

    /// Records that the pull did not store the image.
    pub(crate) async fn failed(&self, mut intent: Intent<'_>) -> io::Result<()> {
        if let Some(name) = intent.name.take() {
            self.known().end(&name, false);
        }
        self.write().await
    }

    /// Records that an image was pulled with a key, or without: then it remains available to all
    /// pods. Drops records of images that are no longer on the node.
    pub(crate) async fn learn(
        &self,
        (id, name): (&str, &str),
        key: Option<&Key>,
        intent: Option<Intent<'_>>,
        present: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        // Immediately, so that the image is not available to all pods meanwhile.
        let mut changed = self.known().change((id, name), key, present);
        if let Some(name) = intent.and_then(|mut intent| intent.name.take()) {
            self.known().end(&name, true);
            changed = true;
        }
        // A change that an earlier write failed to store would be lost by a restart.
        changed |= self.known().unwritten;
        if changed { self.write().await } else { Ok(()) }
    }

    async fn write(&self) -> io::Result<()> {
        let _turn = self.writing.lock().await;
        let (path, written) = (self.path.clone(), self.known().written());
        // After a pull, the disk may be busy for long.
        let writing = common::task::spawn_blocking(move || write(&path, &written)).await;
        let written = writing.map_err(io::Error::other).flatten();
        self.known().unwritten = written.is_err();
        written
    }
}

impl Known {
    fn written(&self) -> Written {
        Written {
            intents: self.intents.keys().cloned().collect(),
            before: self
                .intents
                .iter()
                .filter_map(|(name, pulls)| Some((name.clone(), pulls.before.clone()?)))
                .collect(),
            records: self.records.clone(),
        }
    }

    /// Ends a pull; one that brought the image also settles interrupted pulls of that name.
    fn end(&mut self, name: &str, brought: bool) {
        let Some(pulls) = self.intents.get_mut(name) else {
            return;
        };
        pulls.under_way = pulls.under_way.saturating_sub(1);
        pulls.left &= !brought;
        if pulls.under_way == 0 && !pulls.left {
            self.intents.remove(name);
        }
    }

    /// Returns whether the record has changed.
    fn change(&mut self, (id, name): (&str, &str), key: Option<&Key>, present: impl Fn(&str) -> bool) -> bool {
        let Some(repository) = repository(name) else {
            return false;
        };
        let repositories = self.records.entry(id.to_owned()).or_default();
        let record = repositories.entry(repository).or_default();
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
        self.records.retain(|known, _| known == id || present(known));
        true
    }
}

/// All names and digests of an image.
fn names(image: &Image) -> impl Iterator<Item = &String> {
    image.names.iter().chain(&image.digests)
}

/// Returns the repository of a name; an ID has none.
fn repository(name: &str) -> Option<String> {
    let reference = Reference::parse(name).ok().filter(|_| Digest::parse(name).is_err());
    reference.map(|reference| reference.repository())
}

/// Returns the name that an image has after a pull by this name.
fn carried(name: &str) -> Option<String> {
    let reference = Reference::parse(name).ok()?;
    let by_digest = || Some(format!("{}@{}", reference.repository(), reference.digest()?));
    reference.name().or_else(by_digest)
}

fn read(path: &Path) -> io::Result<Written> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Written::default()),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, written: &Written) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(&serde_json::to_vec(written)?)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent()
        .map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(test)]
mod tests;
