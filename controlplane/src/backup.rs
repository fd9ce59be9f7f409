//! `backup` and `restore`: everything that a cluster is, in one file.
//!
//! ```text
//! manifest.json             format, revision, and for each further entry its bytes and SHA-256
//! controlplane/skiff.db     the database as it was at one moment
//! controlplane/pki/…        the authority, keys and certificates
//! cluster.json              what `skiff up` chose, where it did
//! ```
//!
//! A backup is made beside a running server. A restore requires a directory without a cluster, and
//! puts files in place only after every byte was verified. Its revisions begin far above those of
//! the backup, so that clients that saw lost changes list everything again.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, lchown};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::info;

const FORMAT: u32 = 1;
const MANIFEST: &str = "manifest.json";
const DATABASE: &str = "controlplane/skiff.db";
const PKI: &str = "controlplane/pki";
const SETTINGS: &str = "cluster.json";
/// The settings that no two clusters on a machine share.
const OF_THE_MACHINE: [&str; 5] = ["listen_port", "agent_port", "pod_cidr", "bridge", "cgroup_root"];
/// Bytes of a manifest; a few hundred files fit.
const MANIFEST_BYTES: u64 = 1 << 20;

/// Options of `backup`.
#[derive(Debug, Clone, Args)]
pub struct Backup {
    /// Directory of the cluster's state
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// The file to write; it must not exist
    pub file: PathBuf,
}

/// Options of `restore`.
#[derive(Debug, Clone, Args)]
pub struct Restore {
    /// Directory of the cluster's state; it must hold no cluster
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// A file that `backup` wrote
    pub file: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    revision: u64,
    /// State directory of the cluster.
    #[serde(default)]
    state_dir: Option<String>,
    entries: BTreeMap<String, Sum>,
}

#[derive(Serialize, Deserialize, PartialEq, Eq, Clone)]
struct Sum {
    bytes: u64,
    sha256: String,
}

/// Writes a cluster into one file. The server may be running.
pub fn backup(options: &Backup) -> anyhow::Result<()> {
    ensure!(!options.file.exists(), "{} exists already", options.file.display());
    let part = options.file.with_added_extension("part");
    let copy = options.file.with_added_extension("db");
    let outcome = write_archive(&options.state_dir, &part, &copy).and_then(|revision| {
        fs::rename(&part, &options.file).with_context(|| format!("write {}", options.file.display()))?;
        sync_parent(&options.file)?;
        info!(file = %options.file.display(), revision, "backed up");
        Ok(())
    });
    remove_file(&copy)?;
    if outcome.is_err() {
        remove_file(&part)?;
    }
    outcome
}

fn write_archive(state_dir: &Path, part: &Path, copy: &Path) -> anyhow::Result<u64> {
    let database = state_dir.join(DATABASE);
    ensure!(
        database.exists() || !state_dir.join(PKI).join("ca.key").exists(),
        "{} holds no database: what a cluster has in etcd, `etcdctl snapshot save` saves, and its keys are in {}",
        state_dir.display(),
        state_dir.join(PKI).display()
    );
    ensure!(database.exists(), "{} holds no cluster", state_dir.display());
    // The backup holds every Secret: it must be private, also while it is made.
    for path in [part, copy] {
        remove_file(path)?;
        private_file(path)?;
    }
    let revision = store::copy(&database, copy).with_context(|| format!("back up {}", database.display()))?;
    let mut sources = vec![(DATABASE.to_owned(), copy.to_owned())];
    for entry in fs::read_dir(state_dir.join(PKI)).context("read the certificates")? {
        let entry = entry.context("read the certificates")?;
        if entry.file_type().context("read the certificates")?.is_file() {
            sources.push((format!("{PKI}/{}", entry.file_name().to_string_lossy()), entry.path()));
        }
    }
    let settings = state_dir.join(SETTINGS);
    sources.extend(settings.exists().then(|| (SETTINGS.to_owned(), settings)));
    sources.sort_unstable();

    let mut files = Vec::new();
    let mut entries = BTreeMap::new();
    for (name, path) in sources {
        let mut file = File::open(&path).with_context(|| format!("read {}", path.display()))?;
        let sum = copy_summing(&mut file, &mut io::sink()).with_context(|| format!("read {}", path.display()))?;
        file.seek(SeekFrom::Start(0)).context("read again")?;
        entries.insert(name.clone(), sum.clone());
        files.push((name, file, sum.bytes));
    }
    let manifest = serde_json::to_vec(&Manifest {
        format: FORMAT,
        revision,
        state_dir: Some(absolute(state_dir)?),
        entries,
    })?;
    let archive = OpenOptions::new().write(true).open(part).context("write the backup")?;
    let mut builder = tar::Builder::new(archive);
    append(&mut builder, MANIFEST, manifest.len() as u64, manifest.as_slice())?;
    for (name, file, bytes) in files {
        append(&mut builder, &name, bytes, file.take(bytes))?;
    }
    let archive = builder.into_inner().context("write the backup")?;
    archive.sync_all().context("write the backup")?;
    Ok(revision)
}

fn append(builder: &mut tar::Builder<File>, name: &str, bytes: u64, data: impl Read) -> anyhow::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes);
    header.set_mode(0o600);
    builder
        .append_data(&mut header, name, data)
        .with_context(|| format!("write {name} into the backup"))
}

/// Restores a cluster's state from a backup into a directory without one.
pub fn restore(options: &Restore) -> anyhow::Result<()> {
    let target = options.state_dir.join("controlplane");
    let part = options.state_dir.join("restore.part");
    // Settings beside a part are those of a restore that was interrupted.
    ensure!(
        !target.exists() && (part.exists() || !options.state_dir.join(SETTINGS).exists()),
        "{} holds a cluster already: restore into an empty directory",
        options.state_dir.display()
    );
    private_directory(&options.state_dir)?;
    remove_directory(&part)?;
    private_directory(&part)?;
    let outcome = unpack(&options.file, &part).and_then(|manifest| {
        let found = store::check_copy(&part.join(DATABASE)).context("check the database in the backup")?;
        ensure!(
            found == manifest.revision,
            "the database is not the one of the manifest"
        );
        let revision = store::outdate(&part.join(DATABASE)).context("raise the database's revision")?;
        if manifest.entries.contains_key(SETTINGS) {
            let own = absolute(&options.state_dir)?;
            if manifest.state_dir.is_some_and(|first| first != own) {
                leave_machine(&part.join(SETTINGS))?;
            }
            give_away(&part.join(SETTINGS), &options.state_dir)?;
            fs::rename(part.join(SETTINGS), options.state_dir.join(SETTINGS)).context("restore the settings")?;
        }
        give_away(&part.join("controlplane"), &options.state_dir)?;
        // Last: a state directory with it is a cluster.
        if let Err(error) = fs::rename(part.join("controlplane"), &target) {
            // Settings alone would be those of a new cluster; there were none before.
            fs::remove_file(options.state_dir.join(SETTINGS)).ok();
            return Err(error).context("restore the state");
        }
        sync_parent(&target)?;
        info!(state_dir = %options.state_dir.display(), backup = found, revision, "restored");
        Ok(())
    });
    remove_directory(&part)?;
    outcome
}

/// Unpacks exactly the files that the manifest lists into a new directory.
fn unpack(file: &Path, into: &Path) -> anyhow::Result<Manifest> {
    let reading = || format!("read {}", file.display());
    let mut archive = tar::Archive::new(File::open(file).with_context(reading)?);
    let mut entries = archive.entries().with_context(reading)?;
    let first = entries.next().context("the backup is empty")?.with_context(reading)?;
    ensure!(
        first.path_bytes().as_ref() == MANIFEST.as_bytes(),
        "{} is no backup",
        file.display()
    );
    let mut text = Vec::new();
    first
        .take(MANIFEST_BYTES)
        .read_to_end(&mut text)
        .with_context(reading)?;
    let manifest: Manifest = serde_json::from_slice(&text).context("read the backup's manifest")?;
    ensure!(
        manifest.format == FORMAT,
        "the backup has format {}; this program reads {FORMAT}",
        manifest.format
    );
    let mut missing = manifest.entries.clone();
    for entry in entries {
        let mut entry = entry.with_context(reading)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let expected = missing
            .remove(&name)
            .with_context(|| format!("{name} is not in the manifest, or twice"))?;
        let path = into.join(inside(&name)?);
        if let Some(parent) = path.parent() {
            private_directory(parent)?;
        }
        let mut file = private_file(&path)?;
        // One byte more than expected is enough to detect a mismatch.
        let mut bounded = (&mut entry).take(expected.bytes.saturating_add(1));
        let found = copy_summing(&mut bounded, &mut file).with_context(|| format!("restore {name}"))?;
        ensure!(found == expected, "{name} in the backup is damaged");
        file.sync_all().with_context(|| format!("restore {name}"))?;
        sync_parent(&path)?;
    }
    if let Some(name) = missing.keys().next() {
        bail!("{name} is missing in the backup");
    }
    Ok(manifest)
}

/// Gives a file, or a directory with all that is in it, to the owner of another directory: root makes
/// them for a unit that runs as another user.
pub(crate) fn give_away(path: &Path, like: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(like).with_context(|| format!("find the owner of {}", like.display()))?;
    give_to(path, (owner.uid(), owner.gid())).with_context(|| format!("give away {}", path.display()))
}

fn give_to(path: &Path, owner: (u32, u32)) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if (found.uid(), found.gid()) != owner {
        lchown(path, Some(owner.0), Some(owner.1))?;
    }
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to(&entry?.path(), owner)?;
        }
    }
    Ok(())
}

/// A directory as those that are elsewhere would name it.
fn absolute(directory: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(directory).with_context(|| format!("find {}", directory.display()))?;
    Ok(path.display().to_string())
}

/// Drops machine-specific settings. In another directory this is a second cluster, beside which the
/// first may run: with its cgroup and its bridge it would take the first one's pods for orphans.
fn leave_machine(settings: &Path) -> anyhow::Result<()> {
    let doing = || format!("read {}", settings.display());
    let text = fs::read(settings).with_context(doing)?;
    let mut chosen: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text).with_context(doing)?;
    for name in OF_THE_MACHINE {
        chosen.remove(name);
    }
    remove_file(settings)?;
    let mut file = private_file(settings)?;
    let written = file
        .write_all(&serde_json::to_vec_pretty(&chosen)?)
        .and_then(|()| file.sync_all());
    written.with_context(|| format!("write {}", settings.display()))
}

/// A name that stays inside the directory that it is joined to.
fn inside(name: &str) -> anyhow::Result<&Path> {
    let path = Path::new(name);
    let known = name == SETTINGS || name.starts_with("controlplane/");
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(known && plain, "{name:?} has no place in a backup");
    Ok(path)
}

fn copy_summing(from: &mut impl Read, to: &mut impl Write) -> io::Result<Sum> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut bytes = 0;
    loop {
        let count = from.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else {
            break;
        };
        hash.update(chunk);
        to.write_all(chunk)?;
        bytes += chunk.len() as u64;
    }
    Ok(Sum {
        bytes,
        sha256: format!("{:x}", hash.finalize()),
    })
}

fn private_file(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("make {}", path.display()))
}

fn private_directory(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("make {}", path.display()))
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    absent(fs::remove_file(path)).with_context(|| format!("remove {}", path.display()))
}

fn remove_directory(path: &Path) -> anyhow::Result<()> {
    absent(fs::remove_dir_all(path)).with_context(|| format!("remove {}", path.display()))
}

fn absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn sync_parent(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))
        .and_then(|directory| directory.sync_all())
        .with_context(|| format!("make {} durable", path.display()))
}
