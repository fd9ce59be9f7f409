//! Detection of whether a client that reads has created its channels already.
//!
//! client-go before 1.34, which cannot be distinguished from other clients of protocol version 5,
//! reads before it has created its channels, and drops messages for missing channels. A client that
//! sends a message has created all of them. One that answers a ping reads, and creates them within
//! moments, which take longer on a busy machine.

use std::time::Duration;

use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::mux::{Outgoing, Sink};

/// Time between the first read and the creation of the last channel.
pub(super) const SETTLING: Duration = Duration::from_millis(20);
/// Time after which a client is assumed not to answer pings.
pub(super) const UNANSWERED: Duration = Duration::from_secs(2);

/// Messages seen from a client.
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

    /// Returns once the client has presumably created its channels.
    pub(super) async fn settled(&self, sink: &Sink) {
        let silent = async {
            // A disconnected client is detected elsewhere.
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
