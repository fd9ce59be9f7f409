//! Shutdown of the machine: delayed until the pods have ended, as far as possible.
//!
//! logind announces the shutdown and waits for inhibitor locks. Without logind, a service manager
//! that stops the agent for the shutdown waits for the agent.

mod bus;
mod logind;

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_plan::node::shutdown::{self, Grace, Group};
use agent_plan::pod::pods;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::Error;
use crate::client::events::Kind;
use crate::context::Context;
use crate::pod::orders::Order;
use logind::Logind;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_mins(1);
/// Interval between checks of ending pods.
const POLL: Duration = Duration::from_millis(100);
/// Timeout of an answer from the bus.
const ANSWER: Duration = Duration::from_secs(5);
/// Time to report pods that are killed after their grace periods.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Maximum number of queued messages of logind.
const NEWS: usize = 4;
/// Time for the agent to send remaining events when it ends.
const REST: Duration = Duration::from_millis(500);

/// Message of logind.
enum News {
    /// The shutdown is delayed until the lock is closed, for this time at most.
    Locked(OwnedFd, Duration),
    /// The machine is about to shut down, or the shutdown was cancelled.
    Shutdown(bool),
    /// The connection has ended.
    Lost(io::Error),
}

/// Ends the pods when the machine is about to shut down.
pub(crate) async fn run(context: Arc<Context>, orders: mpsc::Sender<Order>) -> Result<Infallible, Error> {
    if !context.config.shutdown.is_given() {
        return std::future::pending().await;
    }
    loop {
        let error = hear(&context, &orders).await?;
        info!(
            error = image::chain(&error),
            "nobody tells of the machine's shutdown now; it will be asked again"
        );
        sleep(RETRY).await;
    }
}

/// Receives messages until the connection ends.
async fn hear(context: &Context, orders: &mpsc::Sender<Order>) -> Result<io::Error, Error> {
    let (sender, mut news) = mpsc::channel(NEWS);
    let socket = bus::system();
    let thread = std::thread::Builder::new().name("logind".to_owned());
    if let Err(error) = thread.spawn(move || listen(&socket, &sender)) {
        return Ok(error);
    }
    let (mut held, mut grace) = (None, context.config.shutdown);
    loop {
        match news.recv().await {
            Some(News::Locked(lock, patience)) => {
                grace = context.config.shutdown.within(seconds(patience));
                if grace != context.config.shutdown {
                    warn!(
                        seconds = grace.total,
                        "logind waits no longer than this; set InhibitDelayMaxSec= in logind.conf"
                    );
                }
                held = Some(lock);
            }
            Some(News::Shutdown(true)) => {
                announce(context, true);
                end_pods(context, orders, grace).await?;
                // The shutdown may proceed now.
                drop(held.take());
            }
            Some(News::Shutdown(false)) => announce(context, false),
            Some(News::Lost(error)) => return Ok(error),
            None => return Ok(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Receives logind's messages on a thread of its own until the receiver is closed.
fn listen(socket: &Path, news: &mpsc::Sender<News>) {
    let tell = || -> io::Result<()> {
        let mut logind = Logind::connect(socket)?;
        let gone = |_news| io::Error::from(io::ErrorKind::BrokenPipe);
        loop {
            let locked = News::Locked(logind.inhibit()?, logind.patience()?);
            news.blocking_send(locked).map_err(gone)?;
            loop {
                let begins = logind.next()?;
                news.blocking_send(News::Shutdown(begins)).map_err(gone)?;
                if !begins {
                    // The lock was released meanwhile.
                    break;
                }
            }
        }
    };
    if let Err(error) = tell() {
        drop(news.blocking_send(News::Lost(error)));
    }
}

fn announce(context: &Context, begins: bool) {
    let what = if begins { "event" } else { "cancellation" };
    context.shutting_down.send_replace(begins);
    let message = format!("Shutdown manager detected shutdown {what}");
    warn!("{message}");
    context.node_event(Kind::Normal, "Shutdown", message);
}

/// Ends the pods, one priority group after another.
async fn end_pods(context: &Context, orders: &mpsc::Sender<Order>, grace: Grace) -> Result<(), Error> {
    for Group { grace, pods } in shutdown::groups(&context.known_pods(), grace) {
        let uids: Vec<String> = pods.iter().map(|(uid, _)| uid.clone()).collect();
        info!(pods = uids.len(), grace, "pods end because the machine does");
        for (uid, termination) in pods {
            let order = Order::End(uid, termination);
            orders.send(order).await.map_err(|_gone| Error::WatchEnded)?;
        }
        let deadline = Instant::now() + Duration::from_secs(u64::try_from(grace).unwrap_or(0)) + LAST_WORDS;
        // The status was sent, so the pods have ended here. Their directories are removed once their
        // volumes are unmounted, which the next group may still be needed for.
        let over = |uid: &String| {
            let known = context.known_pod(uid);
            known.is_none_or(|pod| pods::terminal_phase(&pod).is_some()) && !context.pod_directory(uid).exists()
        };
        while Instant::now() < deadline && !uids.iter().all(over) {
            sleep(POLL).await;
        }
    }
    Ok(())
}

/// True if the agent is stopped because systemd is shutting down the machine.
async fn is_stopping() -> bool {
    let socket: PathBuf = bus::system();
    let asked = common::task::spawn_blocking(move || logind::is_stopping(&socket));
    matches!(tokio::time::timeout(ANSWER, asked).await, Ok(Ok(Ok(true))))
}

impl Context {
    /// Sends delayed events before the agent ends.
    pub async fn tell_rest(&self) {
        self.recorder.settle(REST).await;
    }

    /// Ends the pods before the agent ends, if the machine shuts down and logind did not delay it.
    pub async fn end_with_machine(&self) {
        let grace = self.config.shutdown;
        if !grace.is_given() || *self.shutting_down.borrow() || !is_stopping().await {
            return;
        }
        announce(self, true);
        let Some(orders) = self.orders.get() else { return };
        if let Err(error) = end_pods(self, orders, grace).await {
            warn!(
                error = image::chain(&error),
                "pods could not be told of the machine's end"
            );
        }
    }
}
