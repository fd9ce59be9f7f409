//! Tests that hold for every kind, and tables for the rules that kinds share.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod amounts;
mod applied;
mod certificates;
mod cluster;
mod decode;
mod defaults;
mod every;
mod gated;
mod go_json;
mod hostile;
mod jobs;
mod label_keys;
mod names;
mod networks;
mod pods;
mod policies;
mod quantity;
mod refused;
mod rules;
mod scalers;
mod selector;
mod shown;
mod statuses;
mod storage;
mod systems;
mod taken;
mod warned;
mod webhooks;
mod worded;
mod workloads;

/// The lines of a table: cells between bars, without the blanks around them.
fn table(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.split('|').map(str::trim).collect())
}
