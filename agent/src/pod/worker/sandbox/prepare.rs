//! Preparation of a pod's sandbox: network, supervisor and volumes concurrently.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use agent_plan::container::{files, oci};
use agent_plan::network::bandwidth::Bandwidth;
use agent_plan::pod::observed::Sandbox;
use agent_plan::pod::pods;
use agent_plan::resources;
use api::pod::References;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};
use network::{AttachSpec, PortMapping};
use runtime::{Class, PodId, SandboxSpec};
use tokio::sync::oneshot;
use tracing::{info, warn};
use volume::Turns;

use super::etc;
use super::failure::Failure;
use super::removal::remove_sandbox;
use super::{claims, demands};
use crate::client::events::Kind;
use crate::client::{requests, sources, tokens};
use crate::context::Context;
use crate::pod::milestones::Step;
use crate::pod::worker::container::draft::{self, Drafts, When};
use crate::pod::worker::container::plan::Plan;
use crate::pod::worker::{Done, Worker, create_within};

/// Sandbox that can start containers.
pub(crate) struct Prepared {
    addresses: Vec<IpAddr>,
    drafts: Drafts,
}

impl Worker {
    pub(in crate::pod::worker) fn prepare(&mut self) {
        let failures = match self.view.sandbox {
            Sandbox::Failed { failures, .. } => failures,
            Sandbox::Absent | Sandbox::Preparing | Sandbox::Ready { .. } | Sandbox::Removing | Sandbox::Removed => 0,
        };
        let first = self.first();
        self.view.sandbox = Sandbox::Preparing;
        let (context, pod, id, attempt) = (
            Arc::clone(&self.context),
            self.given_pod(),
            self.sandbox_id(),
            self.sandbox_attempt,
        );
        self.publisher.sandbox_failures = failures;
        self.context.started.pod(&pod);
        self.follow_sources();
        let turns = Arc::clone(&self.turns);
        self.tasks.spawn(async move {
            let outcome = make(&context, &pod, &id, attempt, &turns, first).await;
            if outcome.is_err()
                && let Err(failures) = remove_sandbox(&context, &id).await
            {
                warn!(sandbox = id, failures, "a sandbox that failed could not be removed");
            }
            Done::Prepared { sandbox: id, outcome }
        });
    }

    pub(in crate::pod::worker) fn prepared(&mut self, sandbox: &str, outcome: Result<Prepared, Failure>) {
        if sandbox != self.sandbox_id() {
            // The sandbox was lost before it was complete; no other task removes what was created
            // in it since.
            return self.clear_away(sandbox.to_owned());
        }
        match outcome {
            Ok(Prepared { addresses, drafts }) => {
                info!(pod = %self.id(), ?addresses, "sandbox ready");
                self.view.sandbox = Sandbox::Ready { addresses };
                self.keep_drafts(drafts);
                self.watch_sources();
                self.carry_out_resize();
            }
            Err(failure) => {
                let Failure { reason, messages } = failure;
                if pods::deletion_grace(&self.pod).is_none() {
                    self.context.started.pod_failed(&self.pod);
                }
                warn!(pod = %self.id(), reason, ?messages, "no sandbox");
                for message in messages {
                    let recorder = &self.context.recorder;
                    recorder.pod(&self.pod, None, Kind::Warning, reason, message);
                }
                self.sandbox_failed(self.publisher.sandbox_failures);
            }
        }
    }
}

async fn make(
    context: &Context,
    pod: &Pod,
    id: &str,
    attempt: u32,
    turns: &Arc<Turns>,
    first: Vec<Arc<Plan>>,
) -> Result<Prepared, Failure> {
    let spec = pod.spec.as_ref();
    let spec = spec.ok_or_else(|| Failure::mount("the pod has no specification".to_owned()))?;
    let handler = demands::check(context, spec).await?;
    let directory = context.pod_directory(pods::uid(pod));
    let made = create_within(context, &directory, "etc");
    made.map_err(|error| Failure::mount(error.to_string()))?;
    let user_ids = context
        .users
        .of(context.parts.runtime.as_ref(), spec, id)
        .map_err(|why| Failure::sandbox_text(&why))?;
    let hostname = files::kernel_hostname(pod, &context.config.dns.domain);
    let hostname = hostname.map_err(|error| Failure::sandbox(&error))?;
    let netns = (!pods::host_network(spec)).then(|| context.parts.network.netns(id));
    let mut wanted = sandbox_spec(pod, spec, id, attempt, netns, hostname);
    wanted.limits.pids = context.config.upkeep.pod_pids;
    (wanted.user_ids, wanted.handler) = (user_ids, handler);
    wanted.se_linux_level = context.se_linux.level(id).map_err(|why| Failure::sandbox_text(&why))?;
    wanted.sysctls = oci::sysctls(spec, context.machine.all_users).into_iter().collect();
    let ((told, connected), (configured, foreseen)) = (oneshot::channel(), oneshot::channel::<()>());
    let networked = async {
        let addresses = connect(context, pod, spec, id, user_ids).await?;
        // Until then, the supervisor receives prepared containers.
        foreseen.await.ok();
        // The receiver is closed if the sandbox could not be created, which is reported there.
        told.send(()).ok();
        // The supervisor continues while the files are written.
        tokio::task::yield_now().await;
        let written = etc::write(context, pod, spec, &directory, &addresses);
        written.map_err(|error| Failure::mount(error.to_string()))?;
        Ok::<_, Failure>(addresses)
    };
    // Only `status.podIP` in a downward API volume needs the address; everything else does not wait
    // for it.
    let needs_address = spec.volumes.iter().flatten().any(shows_address);
    let (early, late) = if needs_address {
        (Vec::new(), first)
    } else {
        draft::early(first)
    };
    let created = async {
        let made = context.parts.runtime.create_sandbox(wanted, connected);
        let made = context.operations.of_runtime("run_podsandbox", made).await;
        made.map_err(|error| Failure::sandbox(&error))?;
        context.reached(pods::uid(pod), Step::Sandbox);
        failpoint::reach("sandboxed");
        Ok(())
    };
    let drafted = async {
        // Meanwhile, the objects of the volumes are requested.
        requests::written().await;
        let placed = !early.is_empty() && place(context, pod, spec, &directory, turns);
        let drafts = draft::make(early, When::Early { placed }).await;
        configured.send(()).ok();
        drafts
    };
    let furnished = async |addresses: &[IpAddr]| {
        volumes(context, pod, addresses, turns).await?;
        Ok::<_, Failure>(draft::make(late, When::Late).await)
    };
    // The supervisor works while the network is created and the containers are configured. Requests
    // to other processes come first.
    let (addresses, mut drafts, mut others) = if needs_address {
        let (made, addresses, drafts) = tokio::join!(created, networked, drafted);
        let addresses = addresses?;
        made?;
        let others = furnished(&addresses).await?;
        (addresses, drafts, others)
    } else {
        let (made, furnished, addresses, drafts) = tokio::join!(created, furnished(&[]), networked, drafted);
        let (others, addresses) = (furnished?, addresses?);
        made?;
        (addresses, drafts, others)
    };
    drafts.append(&mut others);
    Ok(Prepared { addresses, drafts })
}

/// Creates the empty mount sources of the pod; returns whether all of them are complete. Errors are
/// reported when they are filled.
fn place(context: &Context, pod: &Pod, spec: &PodSpec, directory: &Path, turns: &Turns) -> bool {
    let has_volumes = spec.volumes.as_ref().is_some_and(|volumes| !volumes.is_empty());
    let volumes = || {
        let placed = context.volumes.place(turns, pod, &context.surroundings(&[]));
        placed.is_ok_and(|placed| placed)
    };
    etc::place(directory).is_ok() && (!has_volumes || volumes())
}

/// Connects a pod to the network, unless it is on the host network; returns its addresses.
async fn connect(
    context: &Context,
    pod: &Pod,
    spec: &PodSpec,
    id: &str,
    user_ids: Option<u32>,
) -> Result<Vec<IpAddr>, Failure> {
    if pods::host_network(spec) {
        return Ok(context.config.host_addresses());
    }
    let bandwidth = Bandwidth::of(pod.metadata.annotations.as_ref());
    let wanted = AttachSpec {
        sandbox_id: id.to_owned(),
        pod: network::PodId {
            namespace: pods::namespace(pod).to_owned(),
            name: pods::name(pod).to_owned(),
            uid: pods::uid(pod).to_owned(),
        },
        ports: host_ports(spec),
        user_ids,
        bandwidth: bandwidth.map_err(|why| Failure::sandbox_text(&why))?,
    };
    let attached = context.parts.network.attach(wanted).await;
    let attachment = attached.map_err(|error| Failure::sandbox(&error))?;
    context.reached(pods::uid(pod), Step::Network);
    failpoint::reach("attached");
    let addresses: Vec<IpAddr> = attachment.addresses.iter().map(|cidr| cidr.address).collect();
    if context.config.network_policies.is_some() {
        let admitted = Box::pin(context.admissions.admit(pod, &addresses)).await;
        admitted.map_err(|why| Failure::sandbox_text(&why))?;
    }
    Ok(context.config.in_order(&addresses))
}

/// Returns the host ports of a pod.
fn host_ports(spec: &PodSpec) -> Vec<PortMapping> {
    let ports = pods::host_ports(spec);
    let number = |number: i32| u16::try_from(number).ok().filter(|number| *number > 0);
    ports
        .filter_map(|port| {
            let address = port.host_ip.as_deref().filter(|address| !address.is_empty());
            Some(PortMapping {
                host_port: number(port.host_port?)?,
                container_port: number(port.container_port)?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                host_address: address.and_then(|address| address.parse().ok()),
            })
        })
        .collect()
}

/// True if a file of the volume contains an address of the pod or the node.
fn shows_address(volume: &Volume) -> bool {
    let own = volume
        .downward_api
        .iter()
        .flat_map(|source| source.items.iter().flatten());
    let sources = volume
        .projected
        .iter()
        .flat_map(|source| source.sources.iter().flatten());
    let projected = sources.filter_map(|source| source.downward_api.as_ref()?.items.as_ref());
    own.chain(projected.flatten())
        .filter_map(|item| item.field_ref.as_ref())
        .any(|field| field.field_path.starts_with("status."))
}

fn sandbox_spec(
    pod: &Pod,
    spec: &PodSpec,
    id: &str,
    attempt: u32,
    netns: Option<std::path::PathBuf>,
    hostname: String,
) -> SandboxSpec {
    SandboxSpec {
        id: id.to_owned(),
        pod: PodId {
            namespace: pods::namespace(pod).to_owned(),
            name: pods::name(pod).to_owned(),
            uid: pods::uid(pod).to_owned(),
        },
        attempt,
        hostname: if pods::host_network(spec) {
            String::new()
        } else {
            hostname
        },
        netns,
        share_process_namespace: spec.share_process_namespace.unwrap_or(false),
        host_pid: spec.host_pid.unwrap_or(false),
        host_ipc: spec.host_ipc.unwrap_or(false),
        limits: crate::pod::worker::resize::limits(&resources::pod_limits(spec)),
        user_ids: None,
        se_linux_level: None,
        handler: String::new(),
        class: match api::pod::qos(spec) {
            "Guaranteed" => Class::Guaranteed,
            "Burstable" => Class::Burstable,
            _ => Class::BestEffort,
        },
        sysctls: Vec::new(),
    }
}

/// Creates the volumes, or updates those with contents from the API.
pub(in crate::pod::worker) async fn volumes(
    context: &Context,
    pod: &Pod,
    addresses: &[IpAddr],
    turns: &Arc<Turns>,
) -> Result<(), Failure> {
    let Some(spec) = pod
        .spec
        .as_ref()
        .filter(|spec| spec.volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()))
    else {
        return Ok(());
    };
    let (turn, uid) = (turns.take(), pods::uid(pod));
    let references = References::of_volumes(spec);
    let (fetched, tokens, claims) = tokio::join!(
        sources::fetch(
            &context.parts.client,
            &context.objects,
            pods::namespace(pod),
            &references
        ),
        context.tokens.fetch(&context.parts.client, pod, context.now()),
        Box::pin(claims::fetch(context, pod, turns)),
    );
    let mut sources = fetched.map_err(|unread| Failure::mount(unread.of_volume(spec)))?;
    sources.tokens = tokens.map_err(|error| Failure::mount(tokens::refused(spec, &error)))?;
    sources.claims = claims.map_err(Failure::mount)?;
    let (volumes, given, surroundings) = (context.volumes.clone(), pod.clone(), context.surroundings(addresses));
    let made = common::task::spawn_blocking(move || volumes.prepare(&turn, &given, &sources, &surroundings)).await;
    match made {
        Ok(Ok(())) => {
            context.reached(uid, Step::Volumes);
            failpoint::reach("volumes made");
            Ok(())
        }
        Ok(Err(error)) => Err(Failure {
            messages: messages(&error),
            ..Failure::mount(String::new())
        }),
        Err(error) => Err(Failure::mount(error.to_string())),
    }
}

/// Returns a message for each volume's failure, with its cause.
fn messages(error: &volume::Error) -> Vec<String> {
    match error {
        volume::Error::Several(all) => all.iter().flat_map(messages).collect(),
        // These contain the name of the volume already.
        volume::Error::Payload { .. }
        | volume::Error::HostPath { .. }
        | volume::Error::Claim { .. }
        | volume::Error::SetUp { .. } => vec![error.to_string()],
        volume::Error::Name(_)
        | volume::Error::Missing(_)
        | volume::Error::Unsupported(_)
        | volume::Error::SubPath { .. }
        | volume::Error::NoSubPath { .. }
        | volume::Error::ImagePath { .. }
        | volume::Error::Reference(_)
        | volume::Error::Io { .. }
        | volume::Error::Incomplete(_) => vec![image::chain(error)],
    }
}

impl Failure {
    pub(super) fn into_message(self) -> String {
        self.messages.join("; ")
    }
}
