//! Agents, supervisors, shims, containerd and control planes are killed while pods are created,
//! exit, restart and are deleted: at each named failpoint, and at random moments. Invariants: no
//! container is lost or runs twice, nothing is left behind, the bystander pods serve all the while,
//! and `restartCount` is the number of restarts of a container.
//!
//! `SKIFF_KILLS` sets the number of kills at random moments for each kind of node, `SKIFF_SEED`
//! their random seed. The kills of every victim at every failpoint take long: `cargo nextest run -p
//! tests --test kills --run-ignored all`.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use anyhow::Context as _;
use tests::parts::Parts;

use random::Daemons;
use world::Victim;

#[path = "kills/customer.rs"]
mod customer;
#[path = "../../agent/runtime/tests/common/daemon.rs"]
mod daemon;
#[path = "kills/daemons.rs"]
mod daemons;
#[path = "kills/files.rs"]
mod files;
#[path = "kills/looks.rs"]
mod looks;
#[path = "kills/points.rs"]
mod points;
#[path = "kills/random.rs"]
mod random;
#[path = "containers/start.rs"]
mod start;
#[path = "kills/world.rs"]
mod world;

const EMBEDDED: Parts = Parts {
    containerd: false,
    cni: false,
};
const EMBEDDED_CNI: Parts = Parts {
    containerd: false,
    cni: true,
};
const CONTAINERD: Parts = Parts {
    containerd: true,
    cni: false,
};
const CONTAINERD_CNI: Parts = Parts {
    containerd: true,
    cni: true,
};

fn run(story: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tests::logging();
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(Box::pin(story))
}

fn number(variable: &str, otherwise: u64) -> anyhow::Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| variable.to_owned()),
        Err(_) => Ok(otherwise),
    }
}

/// Kills at random moments.
fn at_random(parts: Parts) -> anyhow::Result<()> {
    let kills = usize::try_from(number("SKIFF_KILLS", 8)?)?;
    let seed = number("SKIFF_SEED", 25)?;
    run(random::story(parts, kills, seed, Daemons::Die))
}

/// Only what the daemons rely on is killed: they must not grow by it.
fn under(parts: Parts) -> anyhow::Result<()> {
    let kills = usize::try_from(number("SKIFF_KILLS", 60)?)?;
    run(random::story(parts, kills, number("SKIFF_SEED", 25)?, Daemons::Stay))
}

#[test]
#[ignore = "takes minutes"]
fn daemons_do_not_grow_by_the_ends_of_others() -> anyhow::Result<()> {
    under(EMBEDDED)
}

#[test]
#[ignore = "takes minutes"]
fn daemons_do_not_grow_by_the_ends_of_others_with_containerd_and_cni() -> anyhow::Result<()> {
    under(CONTAINERD_CNI)
}

#[test]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills() -> anyhow::Result<()> {
    at_random(EMBEDDED)
}

#[test]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills_with_cni() -> anyhow::Result<()> {
    at_random(EMBEDDED_CNI)
}

#[test]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills_with_containerd() -> anyhow::Result<()> {
    at_random(CONTAINERD)
}

#[test]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills_with_containerd_and_cni() -> anyhow::Result<()> {
    at_random(CONTAINERD_CNI)
}

#[test]
fn attack_25_an_agent_may_end_at_every_point() -> anyhow::Result<()> {
    run(points::story(EMBEDDED, &[Victim::Agent]))
}

#[test]
fn attack_25_an_agent_may_end_at_every_point_with_containerd_and_cni() -> anyhow::Result<()> {
    run(points::story(CONTAINERD_CNI, &[Victim::Agent]))
}

#[test]
#[ignore = "takes minutes"]
fn attack_25_everybody_may_end_at_every_point() -> anyhow::Result<()> {
    run(points::story(EMBEDDED, points::ALL))
}

#[test]
#[ignore = "takes minutes"]
fn attack_25_everybody_may_end_at_every_point_with_cni() -> anyhow::Result<()> {
    run(points::story(EMBEDDED_CNI, points::ALL))
}

#[test]
#[ignore = "takes minutes"]
fn attack_25_everybody_may_end_at_every_point_with_containerd() -> anyhow::Result<()> {
    run(points::story(CONTAINERD, points::ALL))
}

#[test]
#[ignore = "takes minutes"]
fn attack_25_everybody_may_end_at_every_point_with_containerd_and_cni() -> anyhow::Result<()> {
    run(points::story(CONTAINERD_CNI, points::ALL))
}
