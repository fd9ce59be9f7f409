//! Repairs the pods' network after changes by other programs: recreates lost links, asks a firewall
//! to accept pods' traffic, and reports what cannot be repaired.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use network::Lost;
use tokio::sync::mpsc;
use tracing::{error, warn};

use crate::Error;
use crate::client::events::Kind;
use crate::context::Context;
use crate::pod::orphans::owner;

/// Maximum number of queued losses.
const UNTOLD: usize = 16;
const RETRY: Duration = Duration::from_secs(10);

/// Time between two checks of the firewall, which does not announce reloads.
const LOOK: Duration = Duration::from_secs(30);

/// Runs repairs of the network without end.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    tokio::join!(mend(&context), pass(&context)).0
}

async fn pass(context: &Context) -> Infallible {
    let mut bypass = None;
    loop {
        warn_of_bypass(context, &mut bypass);
        match context.parts.network.pass().await {
            Ok(blocked) => {
                let told = |known: &mut Option<String>| std::mem::replace(known, blocked.clone()) != blocked;
                if context.blocked.send_if_modified(told)
                    && let Some(why) = &blocked
                {
                    warn!(why, "a firewall drops what pods send and get");
                }
            }
            Err(error) => warn!(
                error = image::chain(&error),
                "the machine's firewall may drop what pods send and get"
            ),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Warns once of a kernel setting by which pods' traffic bypasses Services and policies.
fn warn_of_bypass(context: &Context, told: &mut Option<String>) {
    let judged = context.config.service_proxy.is_some() || context.config.network_policies.is_some();
    let found = context.parts.network.bypass().filter(|_| judged);
    if found == *told {
        return;
    }
    if let Some(why) = &found {
        warn!(why, "pods pass Services and policies by");
        context.node_event(Kind::Warning, "BridgeNotFiltered", why.clone());
    }
    *told = found;
}

async fn mend(context: &Context) -> Result<Infallible, Error> {
    loop {
        let (told, mut heard) = mpsc::channel(UNTOLD);
        let telling = async {
            while let Some(lost) = heard.recv().await {
                tell(context, &lost);
            }
        };
        let (ended, ()) = tokio::join!(context.parts.network.mend(told), telling);
        if let Err(error) = ended {
            warn!(
                error = image::chain(&error),
                "the pods' links cannot be watched; it will be tried again"
            );
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn tell(context: &Context, Lost { sandbox_id, failure }: &Lost) {
    let message = match failure {
        None => {
            warn!(
                sandbox = sandbox_id,
                "a pod had lost its network; it is connected again"
            );
            "The pod's network interface was removed from the node; it has been connected again, connections may be lost.".to_owned()
        }
        Some(failure) => {
            error!(sandbox = sandbox_id, failure, "a pod has lost its network");
            format!(
                "The pod's network interface was removed from the node, and it cannot be connected again: {failure}"
            )
        }
    };
    if let Some(pod) = context.known_pod(owner(sandbox_id)) {
        let recorder = &context.recorder;
        recorder.pod(&pod, None, Kind::Warning, "NetworkLost", message);
    }
}
