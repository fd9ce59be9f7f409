//! Whether a client that reads has its channels already.
//!
//! client-go before 1.34, which cannot be told from others that speak the fifth version, reads before it has made its channels, and
//! drops what comes for one that it has not made. Whoever says something has made all. One that answers a ping reads, and makes
//! them within moments, which last on a busy machine.

use std::time::Duration;

use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::mux::{Outgoing, Sink};

/// The time between the first reading and the last channel.
pub(super) const SETTLING: Duration = Duration::from_millis(20);
/// A client that has not answered by then answers no pings.
pub(super) const UNANSWERED: Duration = Duration::from_secs(2);

/// What is seen of a client.
#[derive(Default)]
pub(super) struct Signs {
    says: Notify,
    reads: Notify,
}

impl Signs {
    pub(super) fn see(&self, message: &Result<Message, Error>) {
        match message {
            Ok(Message::Binary(_)) => self.says.notify_one(),
            Ok(Message::Pong(_)) => self.reads.notify_one(),
            _ => {}
        }
    }

    /// Returns when the client has its channels, as far as can be told.
    pub(super) async fn settled(&self, sink: &Sink) {
        let silent = async {
            // One that is gone is noticed elsewhere.
            sink.queue.send(Outgoing::Ping).await.ok();
            tokio::time::timeout(UNANSWERED, self.reads.notified()).await.ok();
            tokio::time::sleep(SETTLING).await;
        };
        tokio::select! {
            () = self.says.notified() => {}
            () = silent => {}
        }
    }
}
