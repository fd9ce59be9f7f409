//! Clients that keep up with the objects: they resume where they were when the server comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tests::http::Target;

use crate::clients::{self, PATH, SELECTOR};
use crate::record::{Read, Record, State};

/// Kind of a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watcher {
    /// Lists once, then resumes from the last event.
    Events,
    /// Like `Events`, with bookmarks to resume from.
    Bookmarks,
    /// Only the first object.
    One,
    /// Only objects of one side: they come and go as their labels change.
    Left,
    /// Starts anew each time, with the present state as its first events.
    Anew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sort {
    Added,
    Modified,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) sort: Sort,
    pub(crate) state: State,
}

/// Changes without a gap, from one revision to another.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    /// The state that it began with.
    pub(crate) present: BTreeMap<String, State>,
    pub(crate) from: u64,
    pub(crate) events: Vec<Event>,
    /// Number of connections of the watcher.
    pub(crate) connections: usize,
}

impl Watcher {
    pub(crate) fn every_sort() -> [Self; 5] {
        [Self::Events, Self::Bookmarks, Self::One, Self::Left, Self::Anew]
    }

    fn query(self) -> &'static str {
        match self {
            Self::Events => SELECTOR,
            Self::Bookmarks => "labelSelector=history&allowWatchBookmarks=true",
            Self::One => "labelSelector=history&fieldSelector=metadata.name%3Dobject-0",
            Self::Left => "labelSelector=history,side%3Dleft",
            Self::Anew => {
                "labelSelector=history&allowWatchBookmarks=true&sendInitialEvents=true&\
                 resourceVersionMatch=NotOlderThan"
            }
        }
    }

    pub(crate) fn wants(self, state: &State) -> bool {
        match self {
            Self::Events | Self::Bookmarks | Self::Anew => true,
            Self::One => state.name == "object-0",
            Self::Left => state.left,
        }
    }

    /// Follows the objects until the last change.
    pub(crate) async fn follow(self, target: Target, record: Arc<Record>) -> anyhow::Result<(Self, Vec<Stretch>)> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut revision = 0;
        loop {
            if self == Self::Anew || stretches.is_empty() {
                match self.begin(&target).await {
                    Ok(stretch) => {
                        revision = stretch.from;
                        stretches.push(stretch);
                    }
                    Err(error) => {
                        pause(&error).await?;
                        continue;
                    }
                }
            }
            let stretch = stretches.last_mut().context("a stretch")?;
            match self.events(&target, &record, stretch, &mut revision).await {
                Ok(true) => return Ok((self, stretches)),
                Ok(false) => {}
                Err(error) => pause(&error).await?,
            }
        }
    }

    /// Returns the state before the first change. (The first events of a watch that starts anew
    /// come with the watch.)
    async fn begin(self, target: &Target) -> anyhow::Result<Stretch> {
        let mut stretch = Stretch {
            present: BTreeMap::new(),
            from: 0,
            events: Vec::new(),
            connections: 0,
        };
        if self != Self::Anew
            && let Read::List { revision, states } = clients::list(&mut target.connect().await?, "").await?
        {
            stretch.from = revision;
            stretch.present = states;
        }
        Ok(stretch)
    }

    /// Reads one watch to its end; true when the last change was seen.
    async fn events(
        self,
        target: &Target,
        record: &Record,
        stretch: &mut Stretch,
        revision: &mut u64,
    ) -> anyhow::Result<bool> {
        let mut beginning = self == Self::Anew;
        let first = *revision == stretch.from && stretch.connections == 0;
        let from = if beginning {
            String::new()
        } else {
            format!("&resourceVersion={revision}")
        };
        let path = format!("{PATH}?watch=true&{}{from}", self.query());
        let mut connection = target.connect().await?;
        let mut events = connection.events(&path).await?;
        stretch.connections += 1;
        if first && !beginning {
            record.follows();
        }
        while let Some(event) = events.next().await? {
            let text = |pointer| event.pointer(pointer).and_then(Value::as_str);
            let object = event.get("object").context("an object")?;
            let sort = match text("/type") {
                Some("ADDED") => Sort::Added,
                Some("MODIFIED") => Sort::Modified,
                Some("DELETED") => Sort::Deleted,
                Some("BOOKMARK") => {
                    *revision = text("/object/metadata/resourceVersion")
                        .context("a revision")?
                        .parse()?;
                    if beginning {
                        anyhow::ensure!(
                            text("/object/metadata/annotations/k8s.io~1initial-events-end") == Some("true")
                        );
                        beginning = false;
                        stretch.from = *revision;
                        if first {
                            record.follows();
                        }
                    }
                    if record.is_last(*revision) {
                        return Ok(true);
                    }
                    continue;
                }
                _ => anyhow::bail!("{WRONG}: {event}"),
            };
            let state = State::read(object)?;
            if beginning {
                stretch.present.insert(state.name.clone(), state);
                continue;
            }
            *revision = state.revision;
            stretch.events.push(Event { sort, state });
            if record.is_last(*revision) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Marks an error that no death of the server explains.
const WRONG: &str = "no change";

/// Waits a moment for a dead server to come back. Any error of a watch is fine as long as no event
/// is missed.
async fn pause(error: &anyhow::Error) -> anyhow::Result<()> {
    let text = format!("{error:#}");
    anyhow::ensure!(!text.contains(WRONG) && !text.contains("410"), "{text}");
    tracing::debug!(text, "a watch broke");
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(())
}
