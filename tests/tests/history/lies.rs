//! The check finds errors: each of these histories is correct except for one false record.

use anyhow::{Context as _, ensure};

use crate::check::history;
use crate::record::{Outcome, Read, Record};
use crate::watchers::{Event, Stretch, Watcher};

type Seen = [(Watcher, Vec<Stretch>)];

/// Fails when a lie is believed.
pub(crate) fn are_found(record: &Record, seen: &Seen) -> anyhow::Result<()> {
    let found = |what: &str, record: &Record, seen: &Seen| {
        let believed = history(record, seen).is_ok();
        ensure!(!believed, "nobody noticed {what}");
        Ok(())
    };
    for (place, (watcher, _)) in seen.iter().enumerate() {
        let with = |change: fn(&mut Vec<Event>, usize)| -> anyhow::Result<_> {
            let mut lie = seen.to_vec();
            let (_, stretches) = lie.get_mut(place).context("a watcher")?;
            let longest = stretches.iter_mut().max_by_key(|stretch| stretch.events.len());
            let events = &mut longest.context("a stretch")?.events;
            ensure!(events.len() > 2, "{watcher:?} saw {} events", events.len());
            change(events, events.len() / 2);
            Ok(lie)
        };
        found(
            &format!("an event that {watcher:?} missed"),
            record,
            &with(|events, at| drop(events.remove(at)))?,
        )?;
        let twice = with(|events, at| events.extend(events.get(at).cloned()))?;
        found(&format!("an event that {watcher:?} saw again"), record, &twice)?;
        found(
            &format!("two events that {watcher:?} saw in turn"),
            record,
            &with(|events, at| events.swap(at, at - 1))?,
        )?;
    }
    let told = |outcome: &Outcome| matches!(outcome, Outcome::Done(_));
    let lost = record.tampered(|writes, _| {
        let write = writes.iter_mut().find(|write| told(&write.outcome));
        if let Some(write) = write {
            "nobody wrote this".clone_into(&mut write.token);
        }
    });
    found("an acknowledged write that is lost", &lost, seen)?;
    let early = record.tampered(|writes, _| {
        if let Some(write) = writes.iter_mut().rev().find(|write| told(&write.outcome)) {
            (write.began, write.ended) = (0, 0);
        }
    });
    found(
        "a write that ended before all others, with the last revision",
        &early,
        seen,
    )?;
    let stale = record.tampered(|_, readings| {
        let old = readings
            .iter()
            .find(|reading| matches!(reading.read, Read::List { .. }))
            .map(|reading| reading.read.clone());
        if let (Some(old), Some(reading)) = (old, readings.last_mut()) {
            reading.read = old;
        }
    });
    found("a list from the beginning at the end", &stale, seen)?;
    let torn = record.tampered(|_, readings| {
        for reading in readings {
            if let Read::List { states, .. } = &mut reading.read
                && states.len() > 1
            {
                states.pop_first();
                return;
            }
        }
    });
    found("a list without one of its objects", &torn, seen)
}
