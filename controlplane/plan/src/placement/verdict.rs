//! Why a pod fits nowhere, in upstream's words.

use std::{collections::BTreeMap, fmt};

/// Why one node will not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Upstream's phrases, `Insufficient cpu`.
    pub reasons: Vec<String>,
    /// Whether removing other pods could change it.
    pub resolvable: bool,
}

impl Misfit {
    /// Something that no removal of pods changes.
    pub fn unresolvable(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: false,
        }
    }

    /// Something that other pods are in the way of.
    pub fn resolvable(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: true,
        }
    }
}

/// Why no node will do: one misfit a node. Its text is what `FailedScheduling` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplaceable {
    /// One for each node.
    pub misfits: Vec<Misfit>,
    /// Why none could, whichever it is.
    pub of_pod: Option<String>,
    /// What became of making room.
    pub preemption: Preemption,
}

/// What becomes of making room for a pod that fits nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// The pod displaces nobody.
    Never,
    /// Nobody would have to go, or it would not help.
    Vain,
    /// Somebody goes already.
    Awaited,
    /// Somebody goes now.
    Begun,
}

impl Unplaceable {
    /// Whether it is worth looking for pods to displace.
    pub fn is_resolvable(&self) -> bool {
        self.preemption == Preemption::Vain && self.misfits.iter().any(|misfit| misfit.resolvable)
    }
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.misfits.len();
        if nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        let reasons = self
            .misfits
            .iter()
            .flat_map(|misfit| misfit.reasons.iter().map(String::as_str));
        match &self.of_pod {
            Some(reason) => write!(f, "0/{nodes} nodes are available: {reason}.")?,
            None => write!(f, "0/{nodes} nodes are available: {}.", histogram(reasons))?,
        }
        if self.preemption == Preemption::Begun {
            return Ok(());
        }
        // What each of upstream's plugins says that would make room: no device claim of the pod could be given up.
        f.write_str(" no new claims to deallocate, preemption: ")?;
        match self.preemption {
            Preemption::Never => return f.write_str("not eligible due to preemptionPolicy=Never."),
            Preemption::Awaited => {
                return f.write_str("not eligible due to a terminating pod on the nominated node.");
            }
            Preemption::Vain | Preemption::Begun => {}
        }
        let attempts = self.misfits.iter().map(|misfit| {
            if misfit.resolvable {
                "No preemption victims found for incoming pod"
            } else {
                "Preemption is not helpful for scheduling"
            }
        });
        write!(f, "0/{nodes} nodes are available: {}.", histogram(attempts))
    }
}

/// `1 Insufficient cpu, 2 Too many pods`: counted, sorted as texts.
fn histogram<'a>(reasons: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut lines: Vec<String> = counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    lines.sort();
    lines.join(", ")
}
