//! Creating and starting a container in a single round trip.

use super::connection::Connection;
use super::unexpected;
use crate::protocol::{Answer, Call};
use crate::{Container, Error, NotRun, Refusal};

/// Sends both requests at once; `create` is the first.
pub(super) async fn run(
    connection: &Connection,
    id: &str,
    create: Call,
    body: &[u8],
    created: Box<dyn FnOnce() + Send + '_>,
) -> Result<Container, NotRun> {
    let start = || Call::Start(id.to_owned());
    let making = connection.begin(create, body, Vec::new()).await;
    let (_, making) = making.map_err(NotRun::Made)?;
    let starting = connection.begin(start(), &[], Vec::new()).await;
    let made = connection.outcome(making).await.and_then(as_container);
    made.map_err(NotRun::Made)?;
    created();
    let (_, starting) = starting.map_err(NotRun::Started)?;
    let started = match connection.outcome(starting).await {
        // A supervisor of an earlier version does not know a container that is still being created.
        Err(Error::Refused(Refusal::ContainerNotFound(_))) => connection.call(start(), &[]).await,
        started => started,
    };
    started.and_then(as_container).map_err(NotRun::Started)
}

pub(super) fn as_container((answer, _): (Answer, Vec<u8>)) -> Result<Container, Error> {
    match answer {
        Answer::Container(container) => Ok(container),
        Answer::Done | Answer::Sandbox(_) | Answer::Ready { .. } | Answer::Exec { .. } => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;
    use crate::State;
    use crate::protocol::Answer;

    fn container(state: State) -> Container {
        Container {
            id: "c".to_owned(),
            name: "c".to_owned(),
            attempt: 0,
            image: String::new(),
            image_id: String::new(),
            log_path: "/log".into(),
            annotations: std::collections::BTreeMap::new(),
            created_at: crate::clock::now(),
            state,
        }
    }

    #[tokio::test]
    async fn a_supervisor_that_starts_only_what_is_there_is_asked_again() {
        let (connection, mut frames) = Connection::new("s".to_owned(), File::open("/dev/null").unwrap().into());
        let running = State::Running {
            pid: 1,
            started_at: crate::clock::now(),
        };
        let supervisor = async {
            frames.recv().await.unwrap();
            frames.recv().await.unwrap();
            let missing = Refusal::ContainerNotFound("c".to_owned());
            connection.answer(2, Err(missing), Vec::new());
            connection.answer(1, Ok(Answer::Container(container(State::Created))), Vec::new());
            frames.recv().await.unwrap();
            connection.answer(3, Ok(Answer::Container(container(running.clone()))), Vec::new());
        };
        // The kind of call does not matter to this supervisor.
        let ran = run(&connection, "c", Call::Inspect, &[], Box::new(|| ()));
        let both = async { tokio::join!(ran, supervisor) };
        let (ran, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
        assert_eq!(ran.unwrap().state, running);
    }
}
