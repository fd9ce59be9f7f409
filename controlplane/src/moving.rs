//! `move`: a cluster's objects from the database in the state directory to etcd or back, at the same revisions, while no
//! control plane runs.
//!
//! 1. Read everything from the source, which must not be in use.
//! 2. Write it to the target, which must be empty, read it again and compare.
//! 3. Set the source aside: its data stays, but no control plane starts on it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use store::{Backend as _, Loaded, Options, Sqlite};
use tracing::info;

use crate::backup;

/// Store of a cluster.
#[derive(Debug, Clone)]
pub enum Place {
    /// The database in the state directory.
    Sqlite,
    /// An etcd.
    Etcd(etcd::Address),
}

impl FromStr for Place {
    type Err = etcd::InvalidAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sqlite" => Ok(Self::Sqlite),
            _ => text.parse().map(Self::Etcd),
        }
    }
}

/// Options of `move`.
#[derive(Debug, Clone, Args)]
pub struct Move {
    /// Directory of the cluster's state
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// The authority of etcd's certificates; without it etcd is asked without TLS
    #[arg(long, value_name = "FILE", env = "SKIFF_ETCD_CAFILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// The certificate that etcd is shown
    #[arg(long, value_name = "FILE", env = "SKIFF_ETCD_CERTFILE", requires_all = ["etcd_cafile", "etcd_keyfile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// The key of the certificate that etcd is shown
    #[arg(long, value_name = "FILE", env = "SKIFF_ETCD_KEYFILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Where the objects are: `sqlite`, or an etcd as etcd://HOST:PORT,HOST:PORT/PREFIX
    pub from: Place,
    /// Where they are to be, in the same words; no objects may be there
    pub to: Place,
}

/// Moves all objects.
pub fn run(options: &Move) -> anyhow::Result<()> {
    let moved = carry(options);
    let directory = options.state_dir.join("controlplane");
    if directory.exists() {
        backup::give_away(&directory, &options.state_dir)?;
    }
    let loaded = moved?;
    info!(
        objects = loaded.heads.len(),
        revision = loaded.revision,
        "moved and verified"
    );
    Ok(())
}

fn carry(options: &Move) -> anyhow::Result<Loaded> {
    let identity = etcd::Identity {
        authority: options.etcd_cafile.clone(),
        certificate: options.etcd_certfile.clone().zip(options.etcd_keyfile.clone()),
    };
    let database = options.state_dir.join("controlplane/skiff.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    match (&options.from, &options.to) {
        (Place::Sqlite, Place::Etcd(to)) => {
            let (source, loaded) = read(&database)?;
            runtime.block_on(etcd::fill(to, &identity, &loaded))?;
            let aside = source.set_aside().context("set the database aside")?;
            info!("{} is what it was; nothing uses it any more", aside.display());
            info!("start control planes with --store {to} (SKIFF_STORE) from now on");
            Ok(loaded)
        }
        (Place::Etcd(from), Place::Sqlite) => {
            let loaded = runtime.block_on(etcd::read(from, &identity))?;
            fill(&database, &loaded)?;
            let ended = runtime.block_on(etcd::end(from, &identity, loaded.revision));
            ended.with_context(|| format!("what is in {} is not to be used: remove it", database.display()))?;
            info!("what is in {from} stays there; nothing uses it any more");
            info!("start the control plane without --store (SKIFF_STORE) from now on");
            Ok(loaded)
        }
        (Place::Sqlite, Place::Sqlite) | (Place::Etcd(_), Place::Etcd(_)) => {
            bail!("objects move from sqlite to an etcd, or from there to sqlite")
        }
    }
}

/// Opens the database, which no control plane may have open, and reads it.
fn read(database: &Path) -> anyhow::Result<(Sqlite, Loaded)> {
    ensure!(database.exists(), "{} does not exist", database.display());
    let existed = Options {
        existed: true,
        ..Options::default()
    };
    let mut source = Sqlite::open(database, &existed)?;
    let loaded = source.load()?;
    Ok((source, loaded))
}

/// Makes a database with these objects.
fn fill(database: &Path, loaded: &Loaded) -> anyhow::Result<()> {
    let directory = database.parent().unwrap_or(database);
    ensure!(
        directory.join("pki/ca.key").exists(),
        "the cluster's keys are not in {}: copy that directory from a control plane of it",
        directory.join("pki").display()
    );
    let mut target = Sqlite::open(database, &Options::default())?;
    ensure!(
        target.load()?.revision == 0,
        "{} holds a ledger already: move it away first",
        database.display()
    );
    target.fill(loaded)?;
    ensure!(
        target.load()?.has_same_objects(loaded),
        "{} does not hold what was written to it: remove it",
        database.display()
    );
    target.close()?;
    Ok(())
}
