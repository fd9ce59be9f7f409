//! The agent's own HTTPS port, for clients with and without permission.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use server::authn::pki::{KUBELET_CLIENT, Pki, Profile};
use tests::machine::Machine;
use tests::{images, process};

/// A certificate and its key, as files.
struct Shown(PathBuf, PathBuf);

impl Shown {
    fn of(machine: &Machine, path: &str) -> Self {
        let file = |ending: &str| machine.state().join(format!("{path}.{ending}"));
        Self(file("crt"), file("key"))
    }

    /// The right name, signed by an authority that an attacker made.
    fn forged(directory: &Path) -> anyhow::Result<Self> {
        Self::issued(
            directory,
            "forger",
            &Profile::client(KUBELET_CLIENT, &["system:masters"]),
        )
    }

    /// A certificate issued by the authority in a subdirectory.
    fn issued(directory: &Path, authority: &str, profile: &Profile) -> anyhow::Result<Self> {
        let now = k8s_openapi::jiff::Timestamp::now();
        let identity = Pki::open(&directory.join(authority), now)?.issue(profile, now)?;
        let file = |ending: &str| directory.join(format!("{}.{ending}", authority.replace('/', "-")));
        let shown = Self(file("crt"), file("key"));
        std::fs::write(&shown.0, identity.certificate)?;
        std::fs::write(&shown.1, &identity.key)?;
        Ok(shown)
    }
}

/// The answer's status, 0 when the connection was refused, and its body.
fn ask(machine: &Machine, shown: Option<&Shown>, method: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let shown = shown.map(|Shown(certificate, key)| {
        let path = |file: &Path| file.display().to_string();
        ["--cert".to_owned(), path(certificate), "--key".to_owned(), path(key)]
    });
    ask_with(machine, shown.as_ref().map_or(&[], |words| words), method, path)
}

fn ask_with(machine: &Machine, shown: &[String], method: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let settings: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(machine.state().join("cluster.json"))?)?;
    let mut command = machine.namespace().command("curl");
    command.args([
        "-sk",
        "--path-as-is",
        "--max-time",
        "60",
        "-w",
        "\n%{http_code}",
        "-X",
        method,
    ]);
    command.args(shown);
    command.arg(format!("https://172.30.0.1:{}{path}", settings["agent_port"]));
    let said = String::from_utf8_lossy(&command.output()?.stdout).into_owned();
    let (body, code) = said.rsplit_once('\n').unwrap_or(("", &said));
    Ok((code.parse()?, body.to_owned()))
}

const PATHS: [&str; 17] = [
    "/pods",
    "/healthz",
    "/healthz/syncloop",
    "/healthz/ping?verbose",
    "/containerLogs/default/web/web",
    "/configz",
    "/flagz",
    "/statusz",
    "/logs",
    "/logs/",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/metrics/resource",
    "/metrics/slis",
    "/runningpods/",
    "/stats/summary",
];

/// Streaming paths to programs and ports; without an upgrade request they serve nothing.
const STREAMS: [&str; 4] = [
    "/exec/default/web/web?command=id&output=1",
    "/attach/default/web/web?output=1",
    "/portForward/default/web",
    "/dial/default/web/80",
];

/// Paths for the API server alone, whatever the permissions of other clients.
const OWN: [&str; 5] = [
    "/dial/22",
    "/dial/default/web/80",
    "/crashes",
    "/milestones",
    "/measures",
];

#[test]
fn attack_21_the_agent_answers_whom_the_api_server_lets_ask() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("port")?;
    let image = images::nginx(&machine)?;
    machine.kubectl(["run", "web", &format!("--image={image}")])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"])?;

    let api_server = Shown::of(&machine, "controlplane/pki/kube-apiserver-kubelet-client");
    for path in PATHS {
        assert_eq!(ask(&machine, Some(&api_server), "GET", path)?.0, 200, "{path}");
    }
    let profile = Profile::client("somebody", &["people"]);
    let somebody = Shown::issued(machine.state(), "controlplane/pki", &profile)?;
    let others = [
        ("no certificate", None, 401),
        // A certificate of the cluster's authority without permissions.
        ("somebody", Some(somebody), 403),
        // Proves a server, not a client: the handshake ends.
        ("the node's server", Some(Shown::of(&machine, "agent/pki/serving")), 0),
        ("a forger", Some(Shown::forged(machine.state())?), 0),
    ];
    for (who, shown, code) in &others {
        for path in PATHS
            .iter()
            .chain(&["/", "/nothing", "/containerLogs/default/web/web?follow=true"])
            .chain(&STREAMS)
        {
            let (said, body) = ask(&machine, shown.as_ref(), "GET", path)?;
            assert_eq!(said, *code, "{who} asks for {path}: {body}");
            assert!(
                body.len() < 150 && !body.contains("web"),
                "{who} asks for {path}: {body}"
            );
        }
    }
    let administrator = Shown::of(&machine, "controlplane/pki/admin");
    for path in PATHS {
        assert_eq!(ask(&machine, Some(&administrator), "GET", path)?.0, 200, "{path}");
    }
    for path in OWN {
        let (code, body) = ask(&machine, Some(&administrator), "GET", path)?;
        assert_eq!(
            (code, body.as_str()),
            (403, "Forbidden (user=kubernetes-admin)"),
            "{path}"
        );
    }
    attack_21_tokens(&machine)?;
    attack_21_paths(&machine, &api_server)?;
    assert!(
        !process::both(&machine.namespace().command("ss").args(["-Hlnt"]).output()?).contains(":10255"),
        "there is a read-only port"
    );
    machine.finish()
}

/// A collector of the nodes' metrics authenticates with a token.
fn attack_21_tokens(machine: &Machine) -> anyhow::Result<()> {
    machine.kubectl(["create", "serviceaccount", "collector"])?;
    machine.kubectl([
        "create",
        "clusterrole",
        "figures",
        "--verb=get",
        "--resource=nodes/metrics,nodes/stats",
    ])?;
    let bind = [
        "create",
        "clusterrolebinding",
        "figures",
        "--clusterrole=figures",
        "--serviceaccount=default:collector",
    ];
    machine.kubectl(bind)?;
    let token = machine.kubectl(["create", "token", "collector"])?;
    let with = |token: &str, path: &str| {
        let words = ["-H".to_owned(), format!("Authorization: Bearer {token}")];
        ask_with(machine, &words, "GET", path)
    };
    for path in ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/stats/summary"] {
        assert_eq!(with(token.trim(), path)?.0, 200, "{path}");
    }
    let who = "user=system:serviceaccount:default:collector";
    for (path, parts) in [
        ("/pods", "pods proxy"),
        ("/configz", "configz proxy"),
        ("/flagz", "configz"),
        ("/statusz", "statusz"),
        ("/logs/", "log"),
        (STREAMS[0], "proxy"),
    ] {
        let told = format!("Forbidden ({who}, verb=get, resource=nodes, subresource(s)=[{parts}])");
        assert_eq!(with(token.trim(), path)?, (403, told), "{path}");
    }
    for path in OWN {
        assert_eq!(with(token.trim(), path)?, (403, format!("Forbidden ({who})")), "{path}");
    }
    let other = "x".repeat(10_000);
    for token in ["", "nonsense", &other, &format!("{}x", token.trim())] {
        assert_eq!(with(token, "/metrics")?, (401, "Unauthorized".to_owned()), "{token:?}");
    }
    Ok(())
}

/// The API server, too, gets only existing paths.
fn attack_21_paths(machine: &Machine, api_server: &Shown) -> anyhow::Result<()> {
    for path in [
        "/logs/../../etc/shadow",
        "/logs/%2e%2e/%2e%2e/etc/shadow",
        "/logs/%252e%252e/%252e%252e/etc/shadow",
        "/containerLogs/default/web/../../../../etc/shadow",
        "/containerLogs/default/web/..%2f..%2f..%2fetc%2fshadow",
        "/containerLogs/default/web/%2e%2e",
        "/containerLogs/default/web/%252e%252e",
        "/containerLogs/%2e%2e/%2e%2e/etc",
        "/containerLogs/default/web/web%00",
        "/containerLogs/default/web%00/web",
        "/containerLogs/default/web/other",
        "/containerLogs/default/other/web",
        "/containerLogs/other/web/web",
        "/run/default/web/web?cmd=id",
        "/debug/pprof/heap",
        "/metrics/other",
        "/logs/x%00",
        "/logs//etc/shadow",
    ] {
        let (code, body) = ask(machine, Some(api_server), "GET", path)?;
        assert_eq!(code, 404, "{path}: {body}");
        assert!(!body.contains("root:"), "{path}: {body}");
    }
    for path in STREAMS {
        let (code, body) = ask(machine, Some(api_server), "GET", path)?;
        assert_eq!(code, 400, "{path}: {body}");
    }
    // Not text: there is no such name.
    let (code, body) = ask(machine, Some(api_server), "GET", "/containerLogs/default/web/%ff%fe")?;
    assert!((400..500).contains(&code), "{code} {body}");
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(ask(machine, Some(api_server), method, "/pods")?.0, 405, "{method}");
    }
    Ok(())
}

/// Idle connections are closed, and however many there are, the API server is served.
#[test]
fn attack_26_idle_strangers_keep_nobody_out() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("idle")?;
    let settings: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(machine.state().join("cluster.json"))?)?;
    let port = u16::try_from(settings["agent_port"].as_u64().unwrap_or_default())?;
    let api_server = Shown::of(&machine, "controlplane/pki/kube-apiserver-kubelet-client");
    std::thread::scope(|scope| {
        let idle = scope.spawn(|| -> anyhow::Result<()> {
            machine.namespace().enter()?;
            let connect = || std::net::TcpStream::connect(("172.30.0.1", port));
            let mut crowd = (0..300).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
            assert_eq!(ask(&machine, Some(&api_server), "GET", "/healthz")?.0, 200);
            for stream in &mut crowd {
                stream.set_read_timeout(Some(std::time::Duration::from_secs(30)))?;
                // The end of the stream, or a reset: not a time-out.
                let ended = std::io::Read::read(stream, &mut [0]);
                let timed_out = ended
                    .as_ref()
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
                assert!(!timed_out, "{ended:?}");
            }
            Ok(())
        });
        idle.join().unwrap_or_else(|_| anyhow::bail!("the idle clients failed"))
    })?;
    machine.finish()
}
