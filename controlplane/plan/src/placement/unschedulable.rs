//! Reasons why a pod is unschedulable, in upstream's words.

use std::collections::BTreeMap;
use std::fmt;

/// Reasons why a node does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Upstream's reasons, such as `Insufficient cpu`.
    pub reasons: Vec<String>,
    /// True if preemption could change it.
    pub resolvable: bool,
}

impl Misfit {
    /// A reason that preemption cannot change.
    pub fn unresolvable(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: false,
        }
    }

    /// A reason that preemption can change.
    pub fn resolvable(reason: impl Into<String>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: true,
        }
    }
}

/// Reasons why no node fits, one entry per node. `Display` gives the message of `FailedScheduling`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplaceable {
    /// One entry per node.
    pub misfits: Vec<Misfit>,
    /// A reason that holds for all nodes.
    pub of_pod: Option<String>,
    /// Outcome of preemption.
    pub preemption: Preemption,
}

/// Outcome of preemption for an unschedulable pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// The pod's `preemptionPolicy` is `Never`.
    Never,
    /// There are no victims, or preemption would not help.
    Vain,
    /// Victims of an earlier preemption are still terminating.
    Awaited,
    /// Victims are being evicted now.
    Begun,
}

impl Unplaceable {
    /// True if preemption is worth a try.
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
        // Upstream's dynamic resources plugin adds this part: no device claim of the pod could be
        // deallocated.
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

/// `1 Insufficient cpu, 2 Too many pods`: reasons with their counts, sorted as text.
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
