//! Network of standard CNI plugins: this module creates the namespaces; the plugins configure
//! everything in them.
//!
//! The crates with CNI's types (`cni-plugin`, `rscni`) are for writing plugins. A runtime passes
//! results on unchanged, including unknown fields, so this module reads two fields of them and
//! keeps the rest as JSON.

pub(crate) mod fuzzing;
mod list;
mod outcome;
mod plugin;
mod records;
mod running;
mod status;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::bridge::sandbox::namespace;
use crate::bridge::{finish, kernel, names, note};
use crate::{AttachSpec, Attachment, Cidr, Error, Network, Ranges};
use list::List;
use plugin::{Failure, Verb};
use records::{Record, Records};
use status::Status;

/// Name of the pod's interface.
const INTERFACE: &str = "eth0";
/// Maximum number of sandboxes that are worked on at once.
const WORKERS: usize = 8;

/// Directories of plugins and of their configuration. Several networks with different state folders
/// may share a machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory for records and mounted namespaces.
    pub state_dir: PathBuf,
    /// Directory of configurations: the first valid one by name is used, read again for each pod.
    pub conf_dir: PathBuf,
    /// Directories that are searched for plugins, in this order.
    pub bin_dirs: Vec<PathBuf>,
    /// Timeout of a plugin, after which it is killed.
    pub time_limit: Duration,
}

/// Network of CNI plugins. Clones share one. Must be used inside a tokio runtime.
#[derive(Clone)]
pub struct Cni {
    inner: Arc<Inner>,
    /// Canceled with the last clone; an interrupted attachment is found by its record.
    tasks: Arc<Mutex<JoinSet<()>>>,
}

struct Inner {
    config: Config,
    records: Mutex<Records>,
    /// Locks by sandbox.
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    workers: Semaphore,
    ranges: Mutex<Option<Ranges>>,
    status: Status,
}

impl Cni {
    /// Reads the records of an earlier process.
    pub fn open(config: Config) -> Result<Self, Error> {
        let records = Records::open(&config.state_dir)?;
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                records: Mutex::new(records),
                turns: Mutex::default(),
                workers: Semaphore::new(WORKERS),
                ranges: Mutex::default(),
                status: Status::default(),
            }),
            tasks: Arc::default(),
        })
    }

    /// Runs `work` to completion, even if the caller is canceled.
    fn run<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Inner>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let (inner, tasks) = (Arc::clone(&self.inner), Arc::clone(&self.tasks));
        async move {
            let (answer, answered) = oneshot::channel();
            {
                let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
                while tasks.try_join_next().is_some() {}
                tasks.spawn(async move {
                    // The caller may have been canceled; the records hold the result.
                    drop(answer.send(work(inner).await));
                });
            }
            answered.await.unwrap_or_else(|_| {
                Err(Error::Kernel {
                    doing: "work on the network",
                    cause: "the task ended without an answer".to_owned(),
                })
            })
        }
        .boxed()
    }
}

impl Inner {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, sandbox: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(sandbox.to_owned()).or_default())
    }

    fn ranges(&self) -> Option<Ranges> {
        *self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attach(&self, spec: AttachSpec) -> Result<Attachment, Error> {
        names::sandbox(&spec.sandbox_id)?;
        let turn = self.turn(&spec.sandbox_id);
        let _turn = turn.lock().await;
        let _permit = self.workers.acquire().await;
        let known = self.records().get(&spec.sandbox_id);
        if let Some(known) = known {
            if let Some(attachment) = known.whole().filter(|known| namespace::is_held(&known.netns)) {
                return Ok(attachment);
            }
            self.take_apart(&spec.sandbox_id).await?;
        }
        let list = self.configured().ok_or_else(|| Error::Unconfigured {
            sandbox: spec.sandbox_id.clone(),
            folder: self.config.conf_dir.clone(),
        })?;
        let record = Record {
            netns: namespace::path(&self.config.state_dir, &spec.sandbox_id),
            list: list.to_json(),
            ranges: self.ranges(),
            result: None,
            attachment: None,
            leaving: false,
            spec,
        };
        self.records().put(record.clone())?;
        match self.make(record.clone(), &list).await {
            Ok(attachment) => Ok(attachment),
            Err(failure) => {
                // Undo the partial attachment; the first error is returned.
                if let Err(second) = self.take_apart(&record.spec.sandbox_id).await {
                    tracing::warn!(sandbox = record.spec.sandbox_id, error = %second, "clean up after a failed attach");
                }
                Err(failure)
            }
        }
    }

    async fn make(&self, mut record: Record, list: &List) -> Result<Attachment, Error> {
        let (netns, user_ids) = (record.netns.clone(), record.spec.user_ids);
        on_a_thread(move || {
            namespace::make(&netns, user_ids)?;
            kernel::with(kernel::Kernel::raise_loopback)
        })
        .await?;
        let result = self.run_list(Verb::Add, list, &record).await;
        let result = result.map_err(|failure| failure.to_string());
        let result = result.and_then(|result| result.ok_or_else(|| "the list has no plugin".to_owned()));
        let found = result.and_then(|result| {
            let found = outcome::addresses(&result, INTERFACE)?;
            self.refuse_taken(&record, &found.addresses)?;
            Ok((result, found))
        });
        let (result, found) = found.map_err(|cause| Error::Plugin {
            doing: "setup",
            sandbox: record.spec.sandbox_id.clone(),
            cause,
        })?;
        let outcome::Addresses { addresses, gateway } = found;
        let first = addresses.first().map(|first| first.gateway());
        let attachment = Attachment {
            sandbox_id: record.spec.sandbox_id.clone(),
            netns: record.netns.clone(),
            addresses,
            gateway: gateway.or(first).unwrap_or([0, 0, 0, 0].into()),
            interface: INTERFACE.to_owned(),
            ports: record.spec.ports.clone(),
        };
        failpoint::reach("connected");
        record.result = Some(result);
        record.attachment = Some(attachment.clone());
        self.records().put(record)?;
        Ok(attachment)
    }

    /// Refuses an address that another pod has: they would receive each other's traffic.
    fn refuse_taken(&self, record: &Record, addresses: &[Cidr]) -> Result<(), String> {
        let all = self.records().all();
        for other in all.iter().filter_map(|other| other.attachment.as_ref()) {
            let taken = |given: &&Cidr| other.addresses.iter().any(|held| held.address == given.address);
            if let Some(given) = addresses.iter().find(taken)
                && other.sandbox_id != record.spec.sandbox_id
            {
                return Err(format!(
                    "address {} is that of sandbox {:?} already",
                    given.address, other.sandbox_id
                ));
            }
        }
        Ok(())
    }

    async fn detach(&self, sandbox: String) -> Result<(), Error> {
        names::sandbox(&sandbox)?;
        let turn = self.turn(&sandbox);
        let _turn = turn.lock().await;
        let _permit = self.workers.acquire().await;
        self.take_apart(&sandbox).await
    }

    /// Detaches a sandbox; the caller holds its lock. Namespace and record stay while a plugin
    /// fails: its resources, such as an address, would leak.
    async fn take_apart(&self, sandbox: &str) -> Result<(), Error> {
        let known = self.records().get(sandbox);
        let Some(mut record) = known else { return Ok(()) };
        // On disk first: if the process is killed now, the record is no longer that of an
        // attachment.
        if !std::mem::replace(&mut record.leaving, true) {
            self.records().put(record.clone())?;
        }
        match List::of(&record.list) {
            Ok(list) => {
                let deleted = match self.run_list(Verb::Delete, &list, &record).await {
                    Ok(_) => Ok(()),
                    Err(failure) => self.delete_by_another(failure, &record).await,
                };
                deleted.map_err(|cause| Error::Plugin {
                    doing: "destroy",
                    sandbox: sandbox.to_owned(),
                    cause,
                })?;
            }
            Err(problem) => tracing::warn!(sandbox, %problem, "the record of an attachment is damaged"),
        }
        failpoint::reach("unconnected");
        let netns = record.netns.clone();
        on_a_thread(move || namespace::release(&netns)).await?;
        failpoint::reach("released");
        self.records().remove(sandbox)
    }

    /// Retries DEL with the current list: the recorded one may have been a mistake that was
    /// corrected since. If it was valid and its plugins exist, there is no retry: only they know
    /// their resources, and other plugins report success for attachments that they do not know.
    async fn delete_by_another(&self, failure: Failure, record: &Record) -> Result<(), String> {
        let present = self.configured().filter(|list| list.to_json() != record.list);
        let was_good = record.attachment.is_some() && !failure.missing;
        let Some(present) = present.filter(|_| !was_good) else {
            return Err(failure.what);
        };
        let deleted = self.run_list(Verb::Delete, &present, record).await;
        deleted.map(drop).map_err(|second| format!("{failure}; {second}"))
    }

    /// Attachments whose namespace is gone, or that a crash interrupted, are undone; for the
    /// others, plugins are called with CHECK.
    async fn start(&self, ranges: Ranges) -> Result<(), Error> {
        *self.ranges.lock().unwrap_or_else(PoisonError::into_inner) = Some(ranges);
        let known = self.records().all();
        for record in known {
            let sandbox = &record.spec.sandbox_id;
            if record.clone().whole().is_none() || !namespace::is_held(&record.netns) {
                if let Err(error) = self.detach(sandbox.clone()).await {
                    tracing::warn!(
                        sandbox,
                        error = error.to_string(),
                        "what is left of an attachment could not be removed"
                    );
                }
                continue;
            }
            let Ok(list) = List::of(&record.list) else { continue };
            if list.check
                && list.since("0.4.0")
                && let Err(problem) = self.run_list(Verb::Check, &list, &record).await
            {
                tracing::warn!(sandbox, %problem, "an attachment is not as its plugins made it");
            }
        }
        match self.configured() {
            Some(list) if list.since("1.1.0") => self.look_after(&list).await,
            Some(_) => {}
            None => {
                let folder = self.config.conf_dir.display();
                tracing::warn!(%folder, "cni plugin not initialized: no network configuration");
            }
        }
        Ok(())
    }

    async fn stop(&self) -> Result<(), Error> {
        let (mut held, mut failures) = (Vec::new(), Vec::new());
        let known = self.records().all();
        for record in known {
            match self.detach(record.spec.sandbox_id).await {
                Err(error @ Error::Plugin { .. }) => held.push(error.to_string()),
                other => note(&mut failures, other),
            }
        }
        // No process runs in the namespaces any more, even if plugins have failed: the records tell
        // which resources are left.
        note(&mut failures, namespace::release_all(&self.config.state_dir));
        if !held.is_empty() {
            failures.extend_from_slice(&held);
        } else if failures.is_empty() {
            self.records().forget()?;
        }
        if failures.len() == held.len() && !held.is_empty() {
            return Err(Error::Held(held));
        }
        finish(failures)
    }
}

/// Runs work that changes its thread's namespace, on a thread of its own.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("namespace".to_owned())
        .spawn(move || drop(answer.send(work())));
    thread.map_err(|source| Error::io("start a thread for", Path::new("a namespace"), source))?;
    answered.await.unwrap_or_else(|_| {
        Err(Error::Kernel {
            doing: "make a namespace",
            cause: "the thread ended without an answer".to_owned(),
        })
    })
}

impl Network for Cni {
    fn start(&self, ranges: Ranges) -> BoxFuture<'_, Result<(), Error>> {
        self.run(move |inner| async move { inner.start(ranges).await })
    }

    fn attach(&self, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment, Error>> {
        self.run(move |inner| async move { Box::pin(inner.attach(spec)).await })
    }

    fn netns(&self, sandbox_id: &str) -> PathBuf {
        namespace::path(&self.inner.config.state_dir, sandbox_id)
    }

    fn local_address(&self) -> Option<IpAddr> {
        let list = self.inner.first_valid(|_, _| ());
        let is_bypassed = list.is_some_and(|list| list.bypasses_node());
        (!is_bypassed).then(|| crate::local::ADDRESS.into())
    }

    fn has_pod(&self, address: IpAddr) -> bool {
        self.inner.records().holds(address)
    }

    fn attachments(&self) -> BoxFuture<'_, Result<Vec<Attachment>, Error>> {
        let all = self.inner.records().all();
        ready(Ok(all.into_iter().map(Record::attached).collect())).boxed()
    }

    fn detach(&self, sandbox_id: &str) -> BoxFuture<'_, Result<(), Error>> {
        let sandbox = sandbox_id.to_owned();
        self.run(move |inner| async move { inner.detach(sandbox).await })
    }

    fn unready(&self) -> BoxFuture<'_, Option<String>> {
        self.problem().boxed()
    }

    fn bypass(&self) -> Option<String> {
        self.inner.bypass()
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.run(|inner| async move { inner.stop().await })
    }
}
