//! Maintains the kernel's tables of Services as planned.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::network::proxy::{Change, Datagrams, Name, Node, Proxy};
use network::services::{Config, Services, Watch};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::health::HealthChecks;
use super::known::{Known, SERVER};
use super::proxy_health::ProxyHealth;
use super::slices::slices_of;
use crate::context::Context;

/// From this number of changed elements on, the tables are rewritten as a whole, without watching
/// our own changes.
const MANY: usize = 1000;
/// First and longest time between two attempts to write all rules; doubled after each failure.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(64);
/// Changes by other programs within this time are repaired together.
const SETTLE: Duration = Duration::from_millis(20);

/// Owned by a blocking thread during a transaction.
struct Parts {
    proxy: Proxy,
    tables: Services,
}

pub(super) struct Kernel {
    /// `None` after a panic of the thread that held them.
    parts: Option<Parts>,
    watch: Option<Watch>,
    /// True once all rules were written.
    filled: bool,
    /// Time of the next complete rewrite.
    due: Option<Instant>,
    retry: Duration,
    health: HealthChecks,
    told: Arc<ProxyHealth>,
}

impl Kernel {
    /// `None` if another proxy serves Services.
    pub(super) fn open(context: &Arc<Context>) -> Option<Self> {
        let wanted = context.config.service_proxy.as_ref()?;
        let config = Config {
            table: wanted.table.clone(),
            pods: context.parts.network.served(),
            services: Vec::new(),
            node_ports: wanted.node_ports.clone(),
        };
        let tables = match Services::open(config) {
            Ok(tables) => tables,
            Err(error) => {
                warn!(error = image::chain(&error), "nothing leads to Services");
                return None;
            }
        };
        let proxy = Proxy::new(node(context));
        let told = ProxyHealth::of(context);
        Some(Self {
            parts: Some(Parts { proxy, tables }),
            watch: None,
            filled: false,
            due: None,
            retry: RETRY,
            health: HealthChecks::new(context, Arc::clone(&told), wanted),
            told,
        })
    }

    /// Returns when all rules must be written again: another program changed the tables, or a retry
    /// is due.
    pub(super) async fn disturbed(&mut self) {
        match (&mut self.watch, self.due) {
            (_, Some(due)) => sleep_until(due).await,
            (Some(watch), None) => {
                if let Err(error) = watch.changed().await {
                    warn!(%error, "changes of the tables of Services by others are not heard");
                }
                warn!("somebody else changed the tables of Services; they are filled again");
                self.due = Some(Instant::now() + SETTLE);
                sleep_until(Instant::now() + SETTLE).await;
            }
            (None, None) => std::future::pending().await,
        }
    }

    /// Makes the node's route to Services, if the one that led there is gone.
    pub(super) async fn reach(&mut self) {
        let Some(config) = self.parts.as_ref().map(|parts| parts.tables.config().clone()) else {
            return;
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || config.reach()).await {
            warn!(error = image::chain(&error), "the node itself does not reach Services");
        }
    }

    /// Updates the kernel.
    pub(super) async fn program(&mut self, context: &Context, known: &mut Known) {
        let Some(inputs) = known.take_changed(context) else {
            return;
        };
        self.told.queued();
        let Some(parts) = &mut self.parts else { return };
        let update = parts.proxy.update(inputs);
        let moved = parts.proxy.see_node(node(context));
        let config = Config {
            pods: context.parts.network.served(),
            services: known.ranges(),
            ..parts.tables.config().clone()
        };
        let other = config != *parts.tables.config();
        if other {
            parts.tables.configure(config);
        }
        let retrying = self.due.is_some_and(|due| due > Instant::now());
        let again = self.due.is_some() && !retrying;
        let all = !self.filled || again || moved || other || update.changes.len() > MANY;
        if all || (!retrying && !update.changes.is_empty()) {
            self.carry_out(context, update.changes, all).await;
        }
        let mut datagrams = update.datagrams;
        if all && let Some(parts) = &self.parts {
            // Also flows of Services that are gone.
            datagrams.get_or_insert_default().succeed(parts.proxy.datagrams());
        }
        if let Some(datagrams) = datagrams {
            forget(datagrams).await;
        }
        if let Some(parts) = &self.parts {
            self.health.serve(parts.proxy.health_checks());
            if self.filled && self.due.is_none() {
                self.told.updated();
            }
        }
    }

    async fn carry_out(&mut self, context: &Context, changes: Vec<Change>, all: bool) {
        let Some(mut parts) = self.parts.take() else { return };
        if all {
            // Each element would be reported to it.
            self.watch = None;
        }
        let begun = Instant::now();
        let work = move || {
            let done = if all {
                parts.tables.refill(|| parts.proxy.all())
            } else {
                let done = parts.tables.change(&changes);
                done.or_else(|error| {
                    warn!(
                        error = image::chain(&error),
                        "a change of Services was refused; all are filled in"
                    );
                    parts.tables.refill(|| parts.proxy.all())
                })
            };
            (parts, done)
        };
        let (parts, done) = match common::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "nothing leads to Services any more");
                return;
            }
        };
        context.programmed.note(begun.elapsed(), done.is_ok());
        self.due = None;
        if let Err(error) = done {
            warn!(error = image::chain(&error), "Services are not led as they should be");
            self.due = Some(Instant::now() + self.retry);
            self.retry = LONGEST_RETRY.min(self.retry * 2);
        } else if all {
            self.retry = RETRY;
            self.filled = true;
            info!(services = parts.proxy.len(), took = ?begun.elapsed(), "all Services are led");
        }
        if self.watch.is_none() {
            self.watch = parts
                .tables
                .watch()
                .map_err(|error| warn!(%error, "others are not watched"))
                .ok();
        }
        self.parts = Some(parts);
    }
}

async fn forget(datagrams: Datagrams) {
    let work = move || network::services::forget(&datagrams);
    if let Ok(Err(error)) = common::task::spawn_blocking(work).await {
        warn!(
            error = image::chain(&error),
            "datagrams may go to endpoints that are gone"
        );
    }
}

/// Returns addresses and ports on which the agent and, by their own EndpointSlices, the API servers
/// listen.
fn reserved(context: &Context) -> BTreeSet<(IpAddr, u16)> {
    let own = context
        .config
        .addresses
        .iter()
        .map(|address| (*address, context.config.port));
    let slices = context.slices();
    let server = Name::new(SERVER.0, SERVER.1);
    let servers = slices_of(&slices, &server).iter().flat_map(|slice| {
        let ports = slice.ports.iter();
        ports.flat_map(|port| slice.endpoints.iter().map(|endpoint| (endpoint.address, port.port)))
    });
    own.chain(servers).collect()
}

fn node(context: &Context) -> Node {
    let labels = context.node().and_then(|node| node.metadata.labels.clone());
    Node {
        name: context.config.node_name.clone(),
        zone: labels.and_then(|mut labels| labels.remove("topology.kubernetes.io/zone")),
        addresses: context.config.addresses.clone(),
        reserved: reserved(context),
    }
}
