//! Measures a cluster of this build's programs on this machine and prints one table, with a probe of the disk beside it.
//!
//! `bench [--image ARCHIVE] [--pods N] [--crowd N] [--only PART]…`, as root; every figure is taken in one run, in a network
//! namespace of its own. Parts are start, pods, node, workloads, lists,
//! scheduling, watchers, requests, containerd and scale.

#[allow(clippy::unwrap_used, reason = "tests have it too, which fail by panicking")]
#[path = "../../../../agent/runtime/tests/common/daemon.rs"]
mod daemon;
mod figures;
mod lists;
mod memory;
mod node;
mod pods;
mod requests;
mod scale;
mod scheduling;
mod share;
mod start;
#[path = "../../../tests/containers/start.rs"]
mod started;
mod watchers;
mod workloads;

use std::path::PathBuf;

use anyhow::Context as _;
use figures::Table;
use tests::http::Target;
use tests::machine::{Machine, Namespace, Setup};

/// Options of the command line.
struct Options {
    archive: Option<PathBuf>,
    stored: usize,
    crowd: usize,
    only: Vec<String>,
}

impl Options {
    fn parse() -> anyhow::Result<Self> {
        let mut options = Self {
            archive: None,
            stored: 10_000,
            crowd: 500,
            only: Vec::new(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--image" => options.archive = Some(PathBuf::from(value()?)),
                "--pods" => options.stored = value()?.parse()?,
                "--crowd" => options.crowd = value()?.parse()?,
                "--only" => options.only.push(value()?),
                other => anyhow::bail!("unknown option {other}"),
            }
        }
        Ok(options)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == part)
    }
}

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(scale::HOLLOW) {
        return scale::hollow(words);
    }
    let options = Options::parse()?;
    let namespace = Namespace::new("bench")?;
    // Before any thread starts, so that every thread of this process is inside.
    namespace.enter()?;
    let mut table = Table::default();
    start::probe(&mut table)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if options.wants("start") {
        runtime.block_on(start::measure(&mut table))?;
    }
    let begun = figures::now();
    let words = node::words(options.crowd);
    let setup = Setup {
        words: &words,
        ..Setup::default()
    };
    let machine = Machine::start_with(namespace, setup)?;
    table.row("`skiff up` -> node Ready", figures::milliseconds(begun.elapsed()));
    if options.wants("start") {
        memory::idle(&machine, &mut table, "idle")?;
    }
    runtime.block_on(parts(&options, &machine, &mut table))?;
    machine.finish()?;
    if let Some(archive) = options.archive.as_ref().filter(|_| options.wants("containerd")) {
        runtime.block_on(share::measure(archive, &mut table))?;
    }
    if options.wants("scale") {
        runtime.block_on(scale::measure(&mut table))?;
    }
    table.print();
    Ok(())
}

async fn parts(options: &Options, machine: &Machine, table: &mut Table) -> anyhow::Result<()> {
    let target = Target::from_kubeconfig(&machine.kubeconfig())?;
    if let Some(archive) = &options.archive {
        machine.import(archive)?;
        let images = machine.skiff(["image", "list"])?;
        let mut words = images.split_whitespace();
        let image = words
            .find(|word| word.contains("nginx"))
            .context("an nginx image on the node")?;
        if options.wants("pods") {
            pods::measure(&target, image, table).await?;
        }
        if options.wants("node") {
            node::measure(machine, &target, image, table, options.crowd).await?;
        }
        if options.wants("workloads") {
            workloads::measure(machine, &target, image, table).await?;
        }
    }
    if options.wants("lists") {
        lists::measure(machine, &target, table).await?;
    }
    if options.wants("scheduling") {
        scheduling::measure(machine, &target, table).await?;
    }
    if options.wants("watchers") {
        watchers::measure(machine, &target, table).await?;
    }
    if options.wants("requests") {
        requests::measure(machine, &target, table, options.stored).await?;
        memory::idle(machine, table, &format!("{} pods stored", options.stored))?;
    }
    Ok(())
}
