//! Creating and starting a container in a single round trip.

use super::connection::Connection;
use super::unexpected;
use crate::protocol::{Answer, Call};
use crate::{Container, Error, NotRun};

/// Sends both requests at once; `create` is the first.
pub(super) async fn run(
    connection: &Connection,
    id: &str,
    create: Call,
    body: &[u8],
    created: Box<dyn FnOnce() + Send + '_>,
) -> Result<Container, NotRun> {
    let making = connection.begin(create, body, Vec::new()).await;
    let (_, making) = making.map_err(NotRun::Made)?;
    let starting = connection.begin(Call::Start(id.to_owned()), &[], Vec::new()).await;
    let made = connection.outcome(making).await.and_then(as_container);
    made.map_err(NotRun::Made)?;
    created();
    let (_, starting) = starting.map_err(NotRun::Started)?;
    let started = connection.outcome(starting).await;
    started.and_then(as_container).map_err(NotRun::Started)
}

pub(super) fn as_container((answer, _): (Answer, Vec<u8>)) -> Result<Container, Error> {
    match answer {
        Answer::Container(container) => Ok(container),
        Answer::Done | Answer::Sandbox(_) | Answer::Ready { .. } | Answer::Exec { .. } => Err(unexpected()),
    }
}
