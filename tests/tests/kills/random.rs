//! Kills at random moments.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tests::machine::eventually;
use tests::parts::Parts;

use super::customer::Customer;
use super::files;
use super::looks::{descriptors, holders};
use super::world::{BYSTANDERS, Deed, Dice, Victim, World, status};

/// Kills between two looks at everything.
const ROUND: usize = 8;

fn victims(parts: Parts, daemons: Daemons) -> &'static [Victim] {
    if daemons == Daemons::Stay {
        if parts.containerd {
            &[Victim::Holder, Victim::Containerd]
        } else {
            &[Victim::Holder]
        }
    } else if parts.containerd {
        &[
            Victim::Agent,
            Victim::Agent,
            Victim::Agent,
            Victim::Holder,
            Victim::Containerd,
            Victim::ControlPlane,
        ]
    } else {
        &[
            Victim::Agent,
            Victim::Agent,
            Victim::Agent,
            Victim::Holder,
            Victim::ControlPlane,
        ]
    }
}

/// Long-lived daemons show what they leak; otherwise each is restarted again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Daemons {
    Stay,
    Die,
}

/// So that what they have open and what they know can be compared: both are new, and idle.
async fn renew(world: &mut World, daemons: Daemons) -> anyhow::Result<()> {
    world.settle().await?;
    if daemons == Daemons::Die {
        world.strike(Victim::ControlPlane).await?;
        world.strike(Victim::Agent).await?;
        world.agent_serves().await?;
        world.settle().await?;
    }
    Ok(())
}

pub(crate) async fn story(parts: Parts, kills: usize, seed: u64, daemons: Daemons) -> anyhow::Result<()> {
    let mut world = World::start(parts).await?;
    world.dice = Dice(seed);
    tracing::info!(seed, kills, ?parts, "SKIFF_SEED and SKIFF_KILLS make the same again");
    let customer = Customer::start(world.bystanders().await?);
    let before = world.settle().await?;
    let held = holders(&before)?;
    renew(&mut world, daemons).await?;
    let quiet = files::Quiet::at_rest(&world).await?;
    for _ in 0..3 {
        world.begin(Deed::Create).await?;
    }
    world.settle().await?;
    let mut history = Vec::new();
    for number in 0..kills {
        let busy = world.wanted.len() - BYSTANDERS.len();
        let deeds: &[Deed] = match busy {
            0..=2 => &[Deed::Create],
            3..=5 => &[Deed::Create, Deed::Exit, Deed::Delete],
            _ => &[Deed::Exit, Deed::Delete],
        };
        let deed = *world.dice.one(deeds).context("a deed")?;
        let victim = *world.dice.one(victims(parts, daemons)).context("a victim")?;
        // All work of an operation happens within this time, and so does the agent's own start if
        // it was the last victim.
        let after = Duration::from_micros(world.dice.below(250_000));
        history.push(format!("{number}: {deed:?}, {victim:?} after {after:?}"));
        world.begin(deed).await?;
        tokio::time::sleep(after).await;
        world.strike(victim).await?;
        if number % ROUND == ROUND - 1 || number + 1 == kills {
            let last = history.split_off(history.len().saturating_sub(ROUND));
            let settled = world.settle().await;
            settled.with_context(|| format!("seed {seed}, {parts:?}\n{}", last.join("\n")))?;
        }
    }
    world.empty().await?;
    let after = world
        .settle()
        .await
        .with_context(|| format!("seed {seed}, at the end"))?;
    for name in BYSTANDERS {
        let (one, other) = (status(&before[name]), status(&after[name]));
        ensure!(one["containerID"] == other["containerID"], "{name}: {other}");
        ensure!(other["restartCount"] == 0, "{name}: {other}");
    }
    for ((pid, least), (same, _)) in held.into_iter().zip(holders(&after)?) {
        ensure!(pid == same, "{pid} is {same} now");
        // Those of clients that were killed are closed a moment later.
        eventually(&format!("{pid} has no more descriptors than {least}"), || {
            let now = descriptors(pid);
            (now <= least + 2).then_some(()).ok_or_else(|| now.to_string())
        })?;
    }
    renew(&mut world, daemons).await?;
    quiet.compare(&world).await.with_context(|| format!("seed {seed}"))?;
    let served = customer.finish()?;
    tracing::info!(kills, served, held = world.held, "killed at random");
    // The only victims, if there are pods to be hit.
    let enough = if victims(parts, daemons).len() == 1 {
        kills / 8
    } else {
        0
    };
    ensure!(world.held >= enough, "{} supervisors or shims were killed", world.held);
    ensure!(served > kills, "{served} pages");
    world.finish().await
}
