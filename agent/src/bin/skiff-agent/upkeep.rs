//! The part of the command line that says when the node has too little of something. Names and values are a kubelet's.

use agent::Upkeep;
use agent_plan::node::collection::Policy;
use agent_plan::node::eviction::{InvalidThreshold, Thresholds, parse_duration};
use agent_plan::node::reserve::{self, Amounts, InvalidReservation};
use agent_plan::node::shutdown::Grace;
use anyhow::Context as _;

/// A kubelet's own, but for the disks: of a machine whose one disk serves more than pods, 15 % is much to leave unused.
const HARD: &str =
    "imagefs.available<5%,imagefs.inodesFree<5%,memory.available<100Mi,nodefs.available<5%,nodefs.inodesFree<5%";

#[derive(Debug, clap::Args)]
pub(crate) struct UpkeepArguments {
    /// When a pod has to go at once, SIGNAL<AMOUNT with commas between; empty for never
    #[arg(long, default_value = HARD, env = "SKIFF_EVICTION_HARD")]
    eviction_hard: String,
    /// When a pod has to go after a while
    #[arg(long, default_value = "", env = "SKIFF_EVICTION_SOFT")]
    eviction_soft: String,
    /// That while, SIGNAL=TIME with commas between
    #[arg(long, default_value = "", env = "SKIFF_EVICTION_SOFT_GRACE_PERIOD")]
    eviction_soft_grace_period: String,
    /// Most seconds that a pod gets to end which has to go after a while
    #[arg(long, default_value_t = 0)]
    eviction_max_pod_grace_period: i64,
    /// What is won on top before all is well again, SIGNAL=AMOUNT with commas between
    #[arg(long, default_value = "")]
    eviction_minimum_reclaim: String,
    /// How long the node shows a pressure after its end
    #[arg(long, default_value = "5m0s", value_parser = parse_duration, env = "SKIFF_EVICTION_PRESSURE_TRANSITION_PERIOD")]
    eviction_pressure_transition_period: i64,
    /// Use of the images' disk in percent from which on unused images are removed; 100 for never
    #[arg(long, default_value_t = 85, env = "SKIFF_IMAGE_GC_HIGH_THRESHOLD")]
    image_gc_high_threshold: u8,
    /// The use in percent that is aimed at
    #[arg(long, default_value_t = 80, env = "SKIFF_IMAGE_GC_LOW_THRESHOLD")]
    image_gc_low_threshold: u8,
    /// An unused image is kept at least so long
    #[arg(long, default_value = "2m0s", value_parser = parse_duration, env = "SKIFF_MINIMUM_IMAGE_TTL_DURATION")]
    minimum_image_ttl_duration: i64,
    /// What pods do not get because the cluster's own daemons need it, RESOURCE=AMOUNT with commas between
    #[arg(long, default_value = "", env = "SKIFF_KUBE_RESERVED")]
    kube_reserved: String,
    /// What pods do not get because the system needs it, RESOURCE=AMOUNT with commas between
    #[arg(long, default_value = "", env = "SKIFF_SYSTEM_RESERVED")]
    system_reserved: String,
    /// How many processes a pod may have. Otherwise each of its containers may have an eighth of all
    #[arg(long)]
    pod_max_pids: Option<i64>,
    /// How long the machine's end waits for pods, those of system priorities included; 0s for not at all
    #[arg(long, default_value = "0s", value_parser = parse_duration, env = "SKIFF_SHUTDOWN_GRACE_PERIOD")]
    shutdown_grace_period: i64,
    /// The part of it that is kept for pods of system priorities
    #[arg(long, default_value = "0s", value_parser = parse_duration, env = "SKIFF_SHUTDOWN_GRACE_PERIOD_CRITICAL_PODS")]
    shutdown_grace_period_critical_pods: i64,
    /// What is held to its part of the node: `pods`, all of them together, or `none`
    #[arg(long, default_value = "pods", value_parser = ["pods", "none"])]
    enforce_node_allocatable: String,
}

impl UpkeepArguments {
    fn reserved(&self) -> Result<Vec<Amounts>, InvalidReservation> {
        [&self.kube_reserved, &self.system_reserved]
            .into_iter()
            .map(|text| reserve::parse(text))
            .collect()
    }

    pub(crate) fn upkeep(&self) -> anyhow::Result<Upkeep> {
        Ok(Upkeep {
            thresholds: self.thresholds().context("the eviction thresholds")?,
            images: Policy::new(
                self.image_gc_high_threshold,
                self.image_gc_low_threshold,
                self.minimum_image_ttl_duration,
            )?,
            reserved: self.reserved().context("the reserved amounts")?,
            pod_pids: self.pod_max_pids,
            enforce: self.enforce_node_allocatable == "pods",
        })
    }

    pub(crate) fn shutdown(&self) -> anyhow::Result<Grace> {
        let grace = Grace {
            total: self.shutdown_grace_period / 1000,
            critical: self.shutdown_grace_period_critical_pods / 1000,
        };
        anyhow::ensure!(
            grace.critical <= grace.total,
            "--shutdown-grace-period-critical-pods must not be longer than --shutdown-grace-period"
        );
        Ok(grace)
    }

    fn thresholds(&self) -> Result<Thresholds, InvalidThreshold> {
        Ok(Thresholds {
            all: Thresholds::parse(
                &self.eviction_hard,
                &self.eviction_soft,
                &self.eviction_soft_grace_period,
                &self.eviction_minimum_reclaim,
            )?,
            transition: self.eviction_pressure_transition_period,
            longest_grace: self.eviction_max_pod_grace_period,
        })
    }
}
