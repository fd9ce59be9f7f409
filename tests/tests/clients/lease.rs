//! Leader election as clients do it: with a Lease that is replaced only as it was last read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};

const NAME: &str = "leader";
const CANDIDATES: usize = 3;
/// Number of terms for which each candidate leads.
const TERMS: usize = 5;

/// Several candidates lead in turn, one at a time.
pub(crate) async fn lead(client: Client) -> anyhow::Result<()> {
    let leaders = Arc::new(AtomicUsize::new(0));
    let candidates =
        (0..CANDIDATES).map(|number| stand(client.clone(), format!("candidate-{number}"), Arc::clone(&leaders)));
    futures::future::try_join_all(candidates).await?;
    let leases: Api<Lease> = Api::default_namespaced(client);
    let spec = leases.get(NAME).await?.spec.unwrap_or_default();
    let transitions = usize::try_from(spec.lease_transitions.unwrap_or_default())?;
    anyhow::ensure!(
        transitions == CANDIDATES * TERMS && spec.holder_identity.is_none(),
        "{spec:?}"
    );
    Ok(())
}

async fn stand(client: Client, name: String, leaders: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::default_namespaced(client);
    let mut terms = 0;
    while terms < TERMS {
        let Some(lease) = free(&leases).await? else {
            tokio::task::yield_now().await;
            continue;
        };
        let Some(mine) = replace(&leases, lease, Some(&name)).await? else {
            continue;
        };
        anyhow::ensure!(leaders.fetch_add(1, Ordering::SeqCst) == 0, "two lead");
        // Other candidates try meanwhile; none acquires the lease before it is released.
        let Some(renewed) = replace(&leases, mine, Some(&name)).await? else {
            anyhow::bail!("{name} lost its lease");
        };
        leaders.fetch_sub(1, Ordering::SeqCst);
        anyhow::ensure!(
            replace(&leases, renewed, None).await?.is_some(),
            "{name} lost its lease"
        );
        terms += 1;
    }
    Ok(())
}

/// Returns the lease if it has no holder.
async fn free(leases: &Api<Lease>) -> anyhow::Result<Option<Lease>> {
    let lease = match leases.get_opt(NAME).await? {
        Some(lease) => lease,
        None => match leases.create(&PostParams::default(), &new()).await {
            Ok(lease) => lease,
            Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(None),
            Err(error) => return Err(error.into()),
        },
    };
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
    Ok(holder.is_none().then_some(lease))
}

fn new() -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec::default()),
    }
}

/// Writes a holder into the lease as it was read; `None` after a conflict.
async fn replace(leases: &Api<Lease>, mut lease: Lease, holder: Option<&str>) -> anyhow::Result<Option<Lease>> {
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.is_none() {
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
    }
    spec.holder_identity = holder.map(str::to_owned);
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    match leases.replace(NAME, &PostParams::default(), &lease).await {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
