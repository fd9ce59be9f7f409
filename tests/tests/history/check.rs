//! Linearizability: all clients' observations fit one history of single objects that change one
//! after the other.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};

use crate::record::{Change, Moment, Outcome, Read, Reading, Record, State, Write};
use crate::watchers::{Event, Sort, Stretch, Watcher};

/// A change that took effect, and when the request for it began and ended; it has no end when the answer was lost.
#[derive(Debug, Clone)]
struct Point {
    revision: u64,
    state: Option<State>,
    began: Moment,
    ended: Moment,
}

/// All states of an object, in order; the first is its absence at the beginning.
type Timelines = BTreeMap<String, Vec<Point>>;

/// Checks everything; the error tells what no single copy of the objects could have answered.
pub(crate) fn history(record: &Record, seen: &[(Watcher, Vec<Stretch>)]) -> anyhow::Result<()> {
    let writes = record.writes();
    let readings = record.readings();
    let events = seen
        .iter()
        .find_map(|(watcher, stretches)| (*watcher == Watcher::Events).then(|| stretches.first()))
        .flatten()
        .context("the watcher of all events")?;
    let events: Vec<Event> = events
        .events
        .iter()
        .filter(|event| !record.is_past(event.state.revision))
        .cloned()
        .collect();
    let timelines = replay(&events, &writes)?;
    in_real_time(&timelines)?;
    refusals(&timelines, &writes)?;
    for reading in &readings {
        reads(&timelines, reading).with_context(|| format!("{reading:#?}"))?;
    }
    let mut connections = 0;
    for (watcher, stretches) in seen {
        for stretch in stretches {
            connections += stretch.connections;
            watched(*watcher, stretch, &events, &timelines, record).with_context(|| format!("{watcher:?}"))?;
        }
    }
    let unknown = writes.iter().filter(|write| write.outcome == Outcome::Unknown).count();
    tracing::info!(
        changes = events.len(),
        writes = writes.len(),
        unknown,
        reads = readings.len(),
        connections
    );
    // Idle clients prove nothing.
    ensure!(
        events.len() > 50 && readings.len() > 20,
        "{} changes, {} reads",
        events.len(),
        readings.len()
    );
    ensure!(
        connections > seen.len() * 5,
        "the watchers connected {connections} times"
    );
    Ok(())
}

/// Replays the changes in the order of their revisions, each on the state that it names as its
/// base.
fn replay(events: &[Event], writes: &[Write]) -> anyhow::Result<Timelines> {
    let by_token: BTreeMap<&str, &Write> = writes.iter().map(|write| (write.token.as_str(), write)).collect();
    let mut timelines = Timelines::new();
    let mut effective = BTreeSet::new();
    let mut newest = 0;
    for event in events {
        let state = &event.state;
        ensure!(state.revision > newest, "after revision {newest}: {event:?}");
        newest = state.revision;
        let points = timelines.entry(state.name.clone()).or_insert_with(|| vec![absent()]);
        let before = points.last().and_then(|point| point.state.as_ref());
        let write = made(event, before, &by_token, writes, &effective)
            .with_context(|| format!("{before:?}, then {event:?}"))?;
        ensure!(effective.insert(write.token.clone()), "took effect twice: {write:?}");
        let known = write.outcome != Outcome::Unknown;
        points.push(Point {
            revision: state.revision,
            state: (event.sort != Sort::Deleted).then(|| state.clone()),
            began: write.began,
            ended: if known { write.ended } else { Moment::MAX },
        });
    }
    for write in writes {
        let acknowledged = matches!(write.outcome, Outcome::Done(_) | Outcome::Deleted(_));
        ensure!(
            !acknowledged || effective.contains(&write.token),
            "acknowledged and lost: {write:?}"
        );
    }
    Ok(timelines)
}

fn absent() -> Point {
    Point {
        revision: 0,
        state: None,
        began: 0,
        ended: 0,
    }
}

/// The request that made a change; an error when none can have, on this state.
fn made<'a>(
    event: &Event,
    before: Option<&State>,
    by_token: &BTreeMap<&str, &'a Write>,
    writes: &'a [Write],
    effective: &BTreeSet<String>,
) -> anyhow::Result<&'a Write> {
    let state = &event.state;
    if event.sort == Sort::Deleted {
        let before = before.context("nothing to delete")?;
        ensure!(state.uid == before.uid && state.token == before.token && state.patched == before.patched);
        return deletion(before, writes, effective);
    }
    let updated = before.is_none_or(|before| before.token != state.token);
    let token = if updated { &state.token } else { &state.patched };
    let write = *by_token.get(token.as_str()).context("nobody wrote this")?;
    match (before, &write.change) {
        (None, Change::Create) => ensure!(event.sort == Sort::Added && state.count == 0),
        (Some(before), Change::Update { from }) => {
            ensure!(before.revision == *from, "not what it was made on");
            ensure!(
                state.count == before.count + 1 && state.patched == before.patched,
                "an update is lost"
            );
        }
        (Some(before), Change::Patch) => {
            ensure!(
                state.count == before.count && state.token == before.token,
                "more than it asked for"
            );
        }
        _ => anyhow::bail!("{write:?} on another state"),
    }
    ensure!(event.sort == if before.is_some() { Sort::Modified } else { Sort::Added });
    ensure!(before.is_none_or(|before| before.uid == state.uid), "another uid");
    ensure!(write.name == state.name, "another object");
    match write.outcome {
        Outcome::Done(revision) => ensure!(revision == state.revision, "the answer told revision {revision}"),
        Outcome::Unknown => {}
        Outcome::Deleted(_) | Outcome::Conflict | Outcome::Exists | Outcome::Absent => {
            anyhow::bail!("refused: {write:?}")
        }
    }
    Ok(write)
}

/// The request that deleted an object: the one with that response, else one whose response was
/// lost.
fn deletion<'a>(before: &State, writes: &'a [Write], effective: &BTreeSet<String>) -> anyhow::Result<&'a Write> {
    let told = writes
        .iter()
        .find(|write| write.outcome == Outcome::Deleted(before.uid.clone()));
    let lost = |write: &&Write| {
        let wanted = match write.change {
            Change::Delete { from: None } => true,
            Change::Delete { from: Some(from) } => from == before.revision,
            Change::Create | Change::Update { .. } | Change::Patch => false,
        };
        let unused = !effective.contains(&write.token);
        write.name == before.name && write.outcome == Outcome::Unknown && wanted && unused
    };
    let write = told.or_else(|| writes.iter().find(lost)).context("nobody deleted it")?;
    if let Change::Delete { from: Some(from) } = write.change {
        ensure!(from == before.revision, "{write:?}");
    }
    Ok(write)
}

/// A change that was acknowledged before another was asked for comes before it.
fn in_real_time(timelines: &Timelines) -> anyhow::Result<()> {
    let mut points: Vec<&Point> = timelines.values().flatten().collect();
    points.sort_by_key(|point| point.revision);
    let mut earliest: Option<&Point> = None;
    for point in points.into_iter().rev().filter(|point| point.revision > 0) {
        if let Some(later) = earliest {
            ensure!(later.ended >= point.began, "{later:?} ended before {point:?} began");
        }
        if earliest.is_none_or(|earliest| point.ended < earliest.ended) {
            earliest = Some(point);
        }
    }
    Ok(())
}

/// True if an object can have had that state at some moment between two.
fn possible(
    timelines: &Timelines,
    name: &str,
    began: Moment,
    ended: Moment,
    wanted: impl Fn(Option<&State>) -> bool,
) -> bool {
    let initial = [absent()];
    let points = timelines.get(name).map_or(&initial[..], Vec::as_slice);
    points.iter().enumerate().any(|(index, point)| {
        let until = points.get(index + 1).map_or(Moment::MAX, |next| next.ended);
        wanted(point.state.as_ref()) && point.began <= ended && until >= began
    })
}

/// Each refusal had its reason at some moment between request and answer.
fn refusals(timelines: &Timelines, writes: &[Write]) -> anyhow::Result<()> {
    for write in writes {
        let so = |wanted: &dyn Fn(Option<&State>) -> bool| {
            possible(timelines, &write.name, write.began, write.ended, wanted)
        };
        let right = match (&write.outcome, &write.change) {
            (Outcome::Done(_) | Outcome::Deleted(_) | Outcome::Unknown, _) => true,
            (Outcome::Absent, _) => so(&|state| state.is_none()),
            (Outcome::Exists, Change::Create) => so(&|state| state.is_some()),
            (Outcome::Conflict, Change::Update { from } | Change::Delete { from: Some(from) }) => {
                so(&|state| state.is_some_and(|state| state.revision != *from))
            }
            (Outcome::Exists | Outcome::Conflict, _) => false,
        };
        ensure!(right, "refused without a reason: {write:?}");
    }
    Ok(())
}

/// The state of all objects at a revision.
fn at(timelines: &Timelines, revision: u64) -> BTreeMap<String, State> {
    let mut states = BTreeMap::new();
    for (name, points) in timelines {
        let next = points.partition_point(|point| point.revision <= revision);
        let point = next.checked_sub(1).and_then(|last| points.get(last));
        if let Some(state) = point.and_then(|point| point.state.clone()) {
            states.insert(name.clone(), state);
        }
    }
    states
}

fn reads(timelines: &Timelines, reading: &Reading) -> anyhow::Result<()> {
    match &reading.read {
        Read::Get { name, state } => {
            let so = possible(timelines, name, reading.began, reading.ended, |at| at == state.as_ref());
            ensure!(so, "never so between request and answer: {:#?}", timelines.get(name));
        }
        Read::List { revision, states } => {
            ensure!(
                *states == at(timelines, *revision),
                "at this revision: {:#?}",
                at(timelines, *revision)
            );
            let stale = timelines
                .values()
                .flatten()
                .find(|point| point.ended < reading.began && point.revision > *revision);
            ensure!(stale.is_none(), "does not have {stale:?}");
        }
    }
    Ok(())
}

/// A watcher sees its part of the history, completely, once and in order.
fn watched(
    watcher: Watcher,
    stretch: &Stretch,
    events: &[Event],
    timelines: &Timelines,
    record: &Record,
) -> anyhow::Result<()> {
    ensure!(
        stretch.present == at(timelines, stretch.from),
        "began with {:#?}",
        stretch.present
    );
    let mut states = stretch.present.clone();
    let mut expected = Vec::new();
    for event in events.iter().filter(|event| event.state.revision > stretch.from) {
        let state = &event.state;
        let before = match event.sort {
            Sort::Added | Sort::Modified => states.insert(state.name.clone(), state.clone()),
            Sort::Deleted => states.remove(&state.name),
        };
        let had = before.filter(|before| watcher.wants(before));
        let has = event.sort != Sort::Deleted && watcher.wants(state);
        let (sort, state) = match (had, has) {
            (None, false) => continue,
            (None, true) => (Sort::Added, state.clone()),
            (Some(_), true) => (Sort::Modified, state.clone()),
            (Some(before), false) => {
                let revision = state.revision;
                (Sort::Deleted, State { revision, ..before })
            }
        };
        expected.push(Event { sort, state });
    }
    let seen: Vec<&Event> = stretch
        .events
        .iter()
        .filter(|event| !record.is_past(event.state.revision))
        .collect();
    if let Some((seen, expected)) = seen.iter().zip(&expected).find(|(seen, expected)| **seen != *expected) {
        anyhow::bail!("saw {seen:#?} instead of {expected:#?}");
    }
    ensure!(
        seen.len() <= expected.len(),
        "saw more than there was: {:#?}",
        seen.last()
    );
    let whole = watcher != Watcher::Anew;
    ensure!(
        !whole || seen.len() == expected.len(),
        "did not see {:#?}",
        expected.get(seen.len())
    );
    Ok(())
}
