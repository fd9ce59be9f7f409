//! Cached disk usage of pods: files are counted once a minute at most, and by one task at a time,
//! for any number of requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::{Context, Place};
use crate::node::pressure::storage::{self, Parts};

/// Time for which a result is cached.
const FRESH: Duration = Duration::from_mins(1);

type Counted = Option<(Instant, Arc<Parts>)>;

/// Latest measurements, by the pods' UIDs.
#[derive(Default)]
pub(crate) struct Looks(Mutex<BTreeMap<String, Look>>);

struct Look {
    /// Instances that ran at the time.
    places: Vec<Option<Place>>,
    counted: watch::Receiver<Counted>,
}

impl Look {
    /// True if it is in progress or recent.
    fn is_good(&self, places: &[Option<Place>]) -> bool {
        let counted = self.counted.borrow().clone();
        match counted {
            _ if self.places != places => false,
            Some((at, _)) => at.elapsed() < FRESH,
            // Without a result, the task has panicked.
            None => self.counted.has_changed().is_ok(),
        }
    }
}

/// Disk usage of a pod, at most a minute old; `None` if it cannot be measured.
pub(in crate::serve) async fn parts(context: &Arc<Context>, pod: &Arc<Pod>) -> Option<Arc<Parts>> {
    let containers = pods::all_containers(pod);
    let places: Vec<_> = containers
        .map(|container| context.place(pod, &container.name))
        .collect();
    let known = join(context, pod, &places);
    let mut counted = match known {
        Ok(counted) => counted,
        // Continues even if the request is cancelled.
        Err(counts) => {
            let written = storage::written(context, pod).await;
            let (context, pod, receiver) = (Arc::clone(context), Arc::clone(pod), counts.subscribe());
            common::task::spawn_blocking(move || {
                let parts = storage::measure_now(&context, &pod, &written);
                counts.send_replace(Some((Instant::now(), Arc::new(parts))));
            });
            receiver
        }
    };
    let counted = counted.wait_for(Option::is_some).await.ok()?;
    counted.as_ref().map(|(_, parts)| Arc::clone(parts))
}

/// Returns the current measurement, or a sender for a new one.
fn join(
    context: &Context,
    pod: &Pod,
    places: &[Option<Place>],
) -> Result<watch::Receiver<Counted>, watch::Sender<Counted>> {
    let mut looks = context.looks.0.lock().unwrap_or_else(PoisonError::into_inner);
    let uid = pods::uid(pod);
    if let Some(look) = looks.get(uid).filter(|look| look.is_good(places)) {
        return Ok(look.counted.clone());
    }
    looks.retain(|uid, _| context.known_pod(uid).is_some());
    let counts = watch::Sender::new(None);
    let look = Look {
        places: places.to_vec(),
        counted: counts.subscribe(),
    };
    looks.insert(uid.to_owned(), look);
    Err(counts)
}
