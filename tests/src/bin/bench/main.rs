//! Measures a cluster of this build's programs on this machine and prints one table, with a probe of the disk beside it.
//!
//! `bench [--image ARCHIVE] [--pods N]`, as root; every figure is taken in one run, in a network namespace of its own.

mod disk;
mod figures;
mod memory;
mod pods;
mod requests;
mod start;
mod watchers;

use std::path::PathBuf;

use anyhow::Context as _;
use figures::Table;
use tests::http::Target;
use tests::machine::{Machine, Namespace};

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let mut archive = None;
    let mut stored = 10_000;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--image" => archive = Some(PathBuf::from(words.next().context("--image ARCHIVE")?)),
            "--pods" => stored = words.next().context("--pods N")?.parse()?,
            other => anyhow::bail!("unknown option {other}; usage: bench [--image ARCHIVE] [--pods N]"),
        }
    }
    let namespace = Namespace::new("bench")?;
    // Before any thread starts, so that every thread of this process is inside.
    namespace.enter()?;
    let mut table = Table::default();
    disk::probe(&mut table)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(start::measure(&mut table))?;
    let begun = figures::now();
    let machine = Machine::start_in(namespace)?;
    table.row("`skiff up` -> node Ready", figures::milliseconds(begun.elapsed()));
    let target = Target::from_kubeconfig(&machine.kubeconfig())?;
    memory::idle(&machine, &mut table, "idle")?;
    if let Some(archive) = archive {
        machine.import(&archive)?;
        runtime.block_on(pods::measure(&machine, &target, &mut table))?;
    }
    runtime.block_on(watchers::measure(&machine, &target, &mut table))?;
    runtime.block_on(requests::measure(&machine, &target, &mut table, stored))?;
    memory::idle(&machine, &mut table, &format!("{stored} pods stored"))?;
    machine.finish()?;
    table.print();
    Ok(())
}
