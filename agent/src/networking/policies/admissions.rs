//! Pods that wait for their policies before their containers start.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use tokio::sync::{mpsc, oneshot};

use crate::networking::services::programmed::Programmed;

/// Longest time that a pod waits for its policies.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Queue length of waiting pods; senders wait for room.
const UNHEARD: usize = 64;

/// Pod that is connected and waits until its policies are enforced.
pub(super) struct Admission {
    pub(super) pod: Box<v1::Pod>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) done: oneshot::Sender<()>,
}

/// Queue of pods that wait for their policies.
pub(crate) struct Admissions {
    asking: mpsc::Sender<Admission>,
    pub(super) asked: Mutex<Option<mpsc::Receiver<Admission>>>,
    pub(crate) programmed: Programmed,
}

impl Default for Admissions {
    fn default() -> Self {
        let (asking, asked) = mpsc::channel(UNHEARD);
        Self {
            asking,
            asked: Mutex::new(Some(asked)),
            programmed: Programmed::default(),
        }
    }
}

impl Admissions {
    /// Waits until the policies of a pod are enforced for its addresses; the error says why they
    /// are not.
    pub(crate) async fn admit(&self, pod: &v1::Pod, addresses: &[IpAddr]) -> Result<(), String> {
        let (done, answered) = oneshot::channel();
        let admission = Admission {
            pod: Box::new(pod.clone()),
            addresses: addresses.to_vec(),
            done,
        };
        let asked = async {
            self.asking.send(admission).await.ok()?;
            answered.await.ok()
        };
        let answer = tokio::time::timeout(TIMEOUT, asked).await;
        let in_force = answer.is_ok_and(|answer| answer.is_some());
        in_force
            .then_some(())
            .ok_or_else(|| "network policies are not in force on this node yet".to_owned())
    }
}
