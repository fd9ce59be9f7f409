//! `skiff up`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;

use super::daemons::process::Daemon;
use super::daemons::readiness::{LEASES, is_ready, keep, lacks_network, renewed, until, within};
use super::directory::{is_free, suits};
use super::settings::{self, Settings};
use crate::arguments::{Place, UpOptions};
use crate::check;
use crate::client::api::Api;
use crate::terminal::{self, Waiting};

pub(crate) async fn run(place: &Place, options: &UpOptions) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "starting a node needs root");
    let state_dir = place.node_dir();
    let Some(served) = place.served_dir() else {
        return start(&state_dir, options).await;
    };
    super::daemons::served::start(&served, options).await?;
    if Settings::read(&state_dir)?.is_some() {
        start(&state_dir, options).await?;
    }
    Ok(())
}

async fn start(state_dir: &Path, options: &UpOptions) -> anyhow::Result<()> {
    suits(state_dir)?;
    ensure!(
        !is_half_restored(state_dir),
        "a restore into {} was interrupted: run it again",
        state_dir.display()
    );
    let mut known = Settings::read(state_dir)?;
    // An interrupted start with new settings cannot take them back.
    let unproven = known.as_mut().and_then(|known| known.before.take());
    ensure!(
        known.is_some() || !state_dir.exists() || is_free(state_dir)?,
        "{} holds something else than a cluster; choose another directory",
        state_dir.display()
    );
    let (control_plane, agent) = (super::control_plane(state_dir), super::agent(state_dir));
    let node_runs = agent.running().is_some();
    let runs = control_plane.running().is_some() || node_runs;
    let wanted = Settings::choose(state_dir, options, known.as_ref())?;
    let same = known.as_ref().is_some_and(|known| known.is_as(&wanted));
    // A cluster that ran here before starts again, even if the machine has changed.
    if !same && !runs && !options.skip_checks {
        check::preflight(&super::wanted(state_dir, &wanted))?;
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .context("create the state directory")?;
    fs::set_permissions(state_dir, fs::Permissions::from_mode(0o700)).context("close the state directory to others")?;
    let before = match (unproven, &known) {
        (None, Some(_)) if same => None,
        (None, known) => Some(Box::new(known.clone().unwrap_or_else(|| wanted.blank()))),
        (earlier, _) => earlier,
    };
    // The running daemons were started with the known settings.
    let settings = match &known {
        Some(known) if runs => {
            ensure!(
                same,
                "the cluster runs with other settings; `skiff down` first to change them"
            );
            known.clone()
        }
        known => {
            // A full disk must not prevent a start with unchanged settings.
            if known.as_ref() != Some(&wanted) {
                let before = before.clone();
                Settings {
                    before,
                    ..wanted.clone()
                }
                .write(state_dir)?;
            }
            wanted
        }
    };
    if let Some(known) = &known {
        tell_of_images(state_dir, known, &settings);
    }
    let started = async {
        if settings.joined.is_some() {
            return super::membership::join::start(state_dir, &settings).await;
        }
        let api = start_control_plane(state_dir, &settings, &control_plane).await?;
        start_agent(state_dir, &settings, &agent, &api).await
    };
    match (started.await, before) {
        (Ok(()), before) => before.map_or(Ok(()), |_| settings.write(state_dir))?,
        // A node that ran before may have pods: it is not stopped.
        (Err(error), Some(before)) if !node_runs => return Err(take_back(state_dir, &before, &settings, &error)),
        (Err(error), _) => return Err(error),
    }
    welcome(state_dir, &settings)
}

/// Stops what was started with new settings, and discards them.
fn take_back(state_dir: &Path, before: &Settings, settings: &Settings, error: &anyhow::Error) -> anyhow::Error {
    let waiting = Waiting::start("taking back what was started");
    let mut failures = super::down::end(state_dir, settings, false, &waiting).1;
    failures.extend(before.write(state_dir).err());
    let told =
        format!("{error:#}\nIt is stopped again, and these settings are not kept: say `skiff up` with better ones.");
    let texts = failures.iter().map(|failure| format!("\nMoreover: {failure:#}"));
    anyhow!(told + &texts.collect::<String>())
}

/// Prints a note on imported images, which belong to the previous runtime.
fn tell_of_images(state_dir: &Path, known: &Settings, settings: &Settings) {
    let (before, now) = (known.backends.engine(), settings.backends.engine());
    let index = fs::read_to_string(state_dir.join("agent/images/index.json")).unwrap_or_default();
    // The images of containerd are not visible here.
    if before != now && (before != "embedded" || index.contains("sha256:")) {
        terminal::note(format!(
            "The images that the node has stay with the {before} runtime: import or pull them again for {now} \
             (`skiff image import`)."
        ));
    }
}

/// True if a restore was interrupted: the settings may be present, the objects are not.
fn is_half_restored(state_dir: &Path) -> bool {
    state_dir.join("restore.part").exists() && !state_dir.join("controlplane").exists()
}

async fn start_control_plane(state_dir: &Path, settings: &Settings, daemon: &Daemon) -> anyhow::Result<Api> {
    let waiting = Waiting::start("starting the control plane");
    let start = || {
        let arguments = [
            "run",
            "--state-dir",
            &state_dir.display().to_string(),
            "--listen",
            &SocketAddr::new(listen_address(settings), settings.listen_port).to_string(),
        ];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
        let own = settings.node_addresses.iter().filter(|address| !address.is_loopback());
        for name in settings.advertise.iter().cloned().chain(own.map(IpAddr::to_string)) {
            arguments.extend(["--advertise".to_owned(), name]);
        }
        arguments.extend(settings::cluster_ranges(&settings.pod_cidr));
        if let Some(addresses) = &settings.load_balancer_addresses {
            arguments.extend(["--load-balancer-addresses".to_owned(), addresses.clone()]);
        }
        arguments.extend(settings.history.flags());
        daemon.start(&super::sibling("skiff-controlplane")?, &arguments)
    };
    let mut child = None;
    let kubeconfig = state_dir.join("admin.kubeconfig");
    let ready = async {
        loop {
            keep(&mut child, daemon, start)?;
            if kubeconfig.is_file()
                && let Ok(api) = Api::from_kubeconfig(&kubeconfig).await
                && api.text("/readyz").await.is_ok()
            {
                return anyhow::Ok(api);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let api = within(ready, daemon, "the API server is not ready").await?;
    waiting.done(&answers(settings));
    Ok(api)
}

fn answers(settings: &Settings) -> String {
    let port = settings.listen_port;
    let others = if listen_address(settings).is_loopback() {
        ""
    } else {
        " and at the machine's other addresses"
    };
    format!("the API server answers on https://127.0.0.1:{port}{others}")
}

/// Returns the address to listen on. Pods use the machine's addresses; a machine without any
/// listens on loopback.
fn listen_address(settings: &Settings) -> IpAddr {
    let is_v6 = |name: &String| name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
    let of_pods = !settings.pod_cidr.is_empty() && settings.pod_cidr.split(',').all(|range| range.contains(':'));
    if settings.advertise.iter().any(is_v6) || of_pods {
        // Includes IPv4. Pods with IPv6 alone ask the node's address in their range.
        Ipv6Addr::UNSPECIFIED.into()
    } else if settings.advertise.is_empty() && settings.node_addresses.iter().all(IpAddr::is_loopback) {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

async fn start_agent(state_dir: &Path, settings: &Settings, daemon: &Daemon, api: &Api) -> anyhow::Result<()> {
    let waiting = Waiting::start("starting the node agent");
    let lease = format!("{LEASES}/{}", settings.node_name);
    let before = api.get(&lease).await.map(|lease| renewed(&lease)).unwrap_or_default();
    let start = || {
        issue_node(state_dir, settings)?;
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(super::agent_arguments(state_dir, settings));
        daemon.start(&super::sibling("skiff-agent")?, &arguments)
    };
    let mut child = None;
    keep(&mut child, daemon, start)?;
    waiting.now(format!("waiting for node {} to be Ready", settings.node_name));
    let socket = state_dir.join("agent/agent.sock");
    let ready = async {
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            keep(&mut child, daemon, start)?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let name = settings.node_name.as_str();
        let started = child.is_some();
        let watching = async {
            // A Lease from before the restart does not count: the new agent must have renewed it.
            if started {
                until(api, LEASES, name, |lease| renewed(lease) != before).await?;
            }
            let is_up = |node: &Value| is_ready(node) || lacks_network(node);
            until(api, "/api/v1/nodes", name, is_up).await
        };
        tokio::pin!(watching);
        loop {
            tokio::select! {
                done = &mut watching => return done,
                () = tokio::time::sleep(Duration::from_millis(50)) => keep(&mut child, daemon, start)?,
            }
        }
    };
    within(ready, daemon, "the node is not Ready").await?;
    let name = &settings.node_name;
    let node = api.get(&format!("/api/v1/nodes/{name}")).await?;
    waiting.done(&if lacks_network(&node) {
        format!("node {name} is up; it will be Ready when there is a CNI configuration")
    } else {
        format!("node {name} is Ready")
    });
    Ok(())
}

/// Issues the agent's kubeconfig and serving certificate for the machine's current addresses.
fn issue_node(state_dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    let out = state_dir.join("agent/pki");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&out)
        .context("create the agent's directory")?;
    let mut command = Command::new(super::sibling("skiff-controlplane")?);
    command
        .arg("issue-node")
        .arg("--state-dir")
        .arg(state_dir)
        .args(["--name", &settings.node_name]);
    for address in &settings.node_addresses {
        command.args(["--address", &address.to_string()]);
    }
    // The node is on this machine.
    command.args(["--server", &format!("https://127.0.0.1:{}", settings.listen_port)]);
    let done = command
        .arg("--out")
        .arg(&out)
        .output()
        .context("issue the node's certificates")?;
    ensure!(
        done.status.success(),
        "issue the node's certificates: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}

fn welcome(state_dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    if settings.joined.is_some() {
        return Ok(());
    }
    let kubeconfig = state_dir.join("admin.kubeconfig");
    terminal::line(format!(
        "The cluster is up: node {}, pods {}.\n\nUse it with kubectl:\n    {}\n    kubectl get nodes,pods -A",
        settings.node_name,
        settings.pod_cidr,
        terminal::bold(&format!("export KUBECONFIG={}", terminal::quoted(&kubeconfig))),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_api_server_listens_is_said() {
        let said = |addresses: &[&str], advertise: &[&str]| {
            let options = UpOptions {
                advertise: advertise.iter().map(ToString::to_string).collect(),
                listen_port: Some(7000),
                pod_cidr: Some("10.9.0.0/24".into()),
                node_address: addresses.iter().map(|address| address.parse().unwrap()).collect(),
                ..UpOptions::default()
            };
            let settings = Settings::choose(Path::new("/tmp/a"), &options, None).unwrap();
            (listen_address(&settings).to_string(), answers(&settings))
        };
        let own = "the API server answers on https://127.0.0.1:7000";
        let all = format!("{own} and at the machine's other addresses");
        for (addresses, advertise, listens, says) in [
            (&["10.1.2.3", "127.0.0.1"][..], &[][..], "0.0.0.0", all.as_str()),
            (&["127.0.0.1"], &[], "127.0.0.1", own),
            (&["127.0.0.1"], &["k8s.example.com"], "0.0.0.0", &all),
            (&["10.1.2.3"], &["10.1.2.3", "fd30::1"], "::", &all),
        ] {
            assert_eq!(
                said(addresses, advertise),
                (listens.to_owned(), says.to_owned()),
                "{addresses:?} {advertise:?}"
            );
        }
    }

    #[test]
    fn an_interrupted_restore_is_no_cluster() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-half-{}", std::process::id()));
        fs::create_dir_all(directory.join("restore.part")).unwrap();
        assert!(is_half_restored(&directory));
        fs::create_dir_all(directory.join("controlplane")).unwrap();
        assert!(!is_half_restored(&directory));
        fs::remove_dir_all(&directory).unwrap();
    }
}
