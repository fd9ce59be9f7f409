//! Who may use the images that were pulled with credentials: pods that have the same, or that pull them with their own.
//!
//! What is on the node without having been pulled, or was pulled by nobody in particular, is everybody's. Before a pull with
//! credentials begins it is written down, so that what came by one that nobody saw the end of is taken for nobody's.

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

/// The file.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    /// The names of images that were about to be pulled with credentials.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    intents: BTreeSet<String>,
    /// The ids of the images that had those names until then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    before: BTreeMap<String, String>,
    #[serde(flatten)]
    records: Records,
}

/// Pulls with credentials of an image with one name.
#[derive(Default)]
struct Pulls {
    under_way: usize,
    /// One of them was given up: it may have brought the image.
    left: bool,
    /// The id of the image that had the name when the first of them began: none of them brought that.
    before: Option<String>,
}

#[derive(Default)]
struct Known {
    records: Records,
    intents: BTreeMap<String, Pulls>,
    /// The file does not have all of it.
    unwritten: bool,
}

/// Of all images that were pulled with credentials.
pub(crate) struct Rights {
    path: PathBuf,
    known: Mutex<Known>,
    /// Held while it is written, so that the last state is there last.
    writing: tokio::sync::Mutex<()>,
}

/// A pull with credentials that is written down. Dropped without an end it stays so.
pub(crate) struct Intent<'a> {
    rights: &'a Rights,
    name: Option<String>,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let mut known = self.rights.known();
            let pulls = known.intents.entry(name).or_default();
            pulls.under_way = pulls.under_way.saturating_sub(1);
            pulls.left = true;
        }
    }
}

impl Rights {
    /// Of what is `present`, what an earlier process was about to pull is nobody's; where it cannot be read what was pulled,
    /// all that came from a registry is.
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

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every pod may use an image.
    pub(crate) fn are_everybodys(&self, image: &Image, name: &str) -> bool {
        self.admit(image, name, &[])
    }

    /// Whether a pod that has these keys may.
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
        // Its id says nothing of where it came from.
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

    /// An image is about to be pulled with keys. Nobody takes what comes for everybody's before it is known what opened it; what
    /// has the name already, by its id `before`, does not come.
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
        let mut intent = Intent { rights: self, name };
        if let Err(error) = self.write().await {
            // The pull does not begin.
            if let Some(name) = intent.name.take() {
                self.known().end(&name, false);
            }
            return Err(error);
        }
        Ok(intent)
    }

    /// The pull did not bring it.
    pub(crate) async fn failed(&self, mut intent: Intent<'_>) -> io::Result<()> {
        if let Some(name) = intent.name.take() {
            self.known().end(&name, false);
        }
        self.write().await
    }

    /// An image was pulled with a key, or without any: then it stays everybody's. Of those that are not on the node any more
    /// nothing is kept.
    pub(crate) async fn learn(
        &self,
        (id, name): (&str, &str),
        key: Option<&Key>,
        intent: Option<Intent<'_>>,
        present: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        // At once, so that nobody meanwhile takes it for everybody's.
        let mut changed = self.known().change((id, name), key, present);
        if let Some(name) = intent.and_then(|mut intent| intent.name.take()) {
            self.known().end(&name, true);
            changed = true;
        }
        // What an earlier write did not bring there is not known after a restart either.
        changed |= self.known().unwritten;
        if changed { self.write().await } else { Ok(()) }
    }

    async fn write(&self) -> io::Result<()> {
        let _turn = self.writing.lock().await;
        let (path, written) = (self.path.clone(), self.known().written());
        // After a pull the disk may be busy for long.
        let writing = tokio::task::spawn_blocking(move || write(&path, &written)).await;
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

    /// A pull came to its end; one that brought the image answers for those that nobody saw the end of, too.
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

    /// Answers whether that changes anything.
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

/// All that an image is called.
fn names(image: &Image) -> impl Iterator<Item = &String> {
    image.names.iter().chain(&image.digests)
}

/// Where an image of this name is from; an id does not say it.
fn repository(name: &str) -> Option<String> {
    let reference = Reference::parse(name).ok().filter(|_| Digest::parse(name).is_err());
    reference.map(|reference| reference.repository())
}

/// What an image that was pulled by this name is called.
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
