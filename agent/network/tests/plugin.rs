//! The built-in network as a CNI plugin, called as by a container runtime. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{greeting, inside, ip, listen, machine, nft_tables};
use network::{AttachSpec, Attachment, Cni, CniConfig, Network as _, PortMapping};
use serde_json::{Value, json};

/// Directory with this plugin alone.
fn plugins(folder: &Path) -> PathBuf {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_network-test-plugin"), bin.join(network::PLUGIN)).unwrap();
    bin
}

fn configuration(folder: &Path, version: &str) -> Value {
    json!({
        "cniVersion": version, "name": "pods", "type": network::PLUGIN, "bridge": "plugin0",
        "subnet": "10.99.0.0/29", "dataDir": folder.join("data"),
    })
}

struct Call<'a> {
    bin: &'a Path,
    container: &'a str,
    netns: &'a Path,
}

impl Call<'_> {
    /// Result of the plugin, or its error result.
    fn ask(&self, command: &str, configuration: &Value) -> Result<Value, Value> {
        let mut child = Command::new(self.bin.join(network::PLUGIN))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", self.netns)
            .env("CNI_IFNAME", "net1")
            .env("CNI_PATH", self.bin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = configuration.to_string();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let answer = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() {
            Ok(answer)
        } else {
            Err(answer)
        }
    }
}

/// Network namespace as created by a container runtime.
struct Held(PathBuf);

impl Held {
    fn new(name: &str) -> Self {
        let name = format!("plugin-{name}-{}", std::process::id());
        ip(&format!("netns add {name}"));
        Self(Path::new("/var/run/netns").join(name))
    }

    fn attachment(&self) -> Attachment {
        Attachment {
            sandbox_id: String::new(),
            netns: self.0.clone(),
            addresses: Vec::new(),
            gateway: [10, 99, 0, 1].into(),
            interface: "net1".to_owned(),
            ports: Vec::new(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let name = self.0.file_name().unwrap();
        Command::new("ip").args(["netns", "del"]).arg(name).status().ok();
    }
}

#[test]
fn a_runtime_adds_checks_and_deletes() {
    let folder = machine();
    let bin = plugins(folder.path());
    let (one, other) = (Held::new("one"), Held::new("two"));
    let first = Call {
        bin: &bin,
        container: "c1",
        netns: &one.0,
    };
    let versions = first.ask("VERSION", &json!({"cniVersion": "1.0.0"})).unwrap();
    assert!(
        versions["supportedVersions"]
            .as_array()
            .unwrap()
            .contains(&json!("1.1.0"))
    );
    let mut asked = configuration(folder.path(), "1.0.0");
    first.ask("STATUS", &asked).unwrap();
    // Ranges may also be given per container only.
    let mut unranged = asked.clone();
    unranged.as_object_mut().unwrap().remove("subnet");
    first.ask("STATUS", &unranged).unwrap();
    let made = first.ask("ADD", &asked).unwrap();
    assert_eq!(made["ips"][0]["address"], "10.99.0.2/29", "{made}");
    assert_eq!(made["interfaces"][2]["sandbox"], one.0.to_str().unwrap());
    let second = Call {
        bin: &bin,
        container: "c2",
        netns: &other.0,
    };
    let old = second.ask("ADD", &configuration(folder.path(), "0.4.0")).unwrap();
    assert_eq!(
        (&old["ips"][0]["version"], &old["ips"][0]["address"]),
        (&json!("4"), &json!("10.99.0.3/29"))
    );

    // They reach each other and the machine, with a service on the bridge's address.
    let _listener = inside(&other.attachment(), || listen("0.0.0.0:9000".parse().unwrap()));
    let said = inside(&one.attachment(), || greeting("10.99.0.3:9000".parse().unwrap()));
    assert_eq!(said, "hello");
    assert_eq!(greeting("10.99.0.3:9000".parse().unwrap()), "hello");

    asked["prevResult"] = made.clone();
    first.ask("CHECK", &asked).unwrap();
    ip(&format!("link del {}", made["interfaces"][1]["name"].as_str().unwrap()));
    assert_eq!(first.ask("CHECK", &asked).unwrap_err()["code"], 100);
    for _ in 0..2 {
        assert_eq!(first.ask("DEL", &asked).unwrap(), Value::Null);
    }
    assert_eq!(first.ask("CHECK", &asked).unwrap_err()["code"], 3);

    // Attachments that the runtime does not list are removed.
    asked["cni.dev/valid-attachments"] = json!([{"containerID": "c2", "ifname": "net1"}]);
    first.ask("GC", &asked).unwrap();
    assert_eq!(greeting("10.99.0.3:9000".parse().unwrap()), "hello");
    asked["cni.dev/valid-attachments"] = json!([]);
    first.ask("GC", &asked).unwrap();
    assert_eq!(second.ask("CHECK", &asked).unwrap_err()["code"], 3);
    assert!(other.0.exists(), "the namespace is the runtime's");
}

#[test]
fn attack_40_what_cannot_be_is_refused_in_the_protocols_words() {
    let folder = machine();
    let bin = plugins(folder.path());
    let held = Held::new("bad");
    let good = configuration(folder.path(), "1.1.0");
    let refused = |container: &str, change: &dyn Fn(&mut Value)| {
        let mut asked = good.clone();
        change(&mut asked);
        let call = Call {
            bin: &bin,
            container,
            netns: &held.0,
        };
        call.ask("ADD", &asked).unwrap_err()["code"].as_u64()
    };
    let nothing = |_: &mut Value| {};
    for container in ["", "../c", "a/b", "-c", "."] {
        assert_eq!(refused(container, &nothing), Some(4), "{container}");
    }
    assert_eq!(refused("c", &|asked| asked["cniVersion"] = json!("2.0.0")), Some(1));
    assert_eq!(refused("c", &|asked| asked["subnet"] = json!("ten")), Some(6));
    for (key, value) in [
        ("name", json!("../pods")),
        ("bridge", json!("a;flush")),
        ("dataDir", json!("relative")),
        ("ipam", json!({"type": "host-local"})),
        ("subnet", json!("10.99.0.0/31")),
        (
            "runtimeConfig",
            json!({"portMappings": [{"hostPort": 1, "containerPort": 1, "hostIP": "x"}]}),
        ),
    ] {
        assert_eq!(refused("c", &|asked| asked[key] = value.clone()), Some(7), "{key}");
    }
    // A failed attachment does not leak its address: the range has five.
    let missing = folder.path().join("none");
    for number in 0..8 {
        let call = Call {
            bin: &bin,
            container: &format!("c{number}"),
            netns: &missing,
        };
        assert_eq!(call.ask("ADD", &good).unwrap_err()["code"], 5);
    }
    for number in 0..5 {
        let call = Call {
            bin: &bin,
            container: &format!("full{number}"),
            netns: &held.0,
        };
        let asked = call.ask("ADD", &good);
        // The interface exists from the second attempt on.
        assert_eq!(asked.is_ok(), number == 0, "{asked:?}");
    }
}

#[tokio::test]
async fn the_agents_own_network_of_plugins_can_be_this_one() {
    let folder = machine();
    let bin = plugins(folder.path());
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    let mut plugin = configuration(folder.path(), "1.1.0");
    plugin.as_object_mut().unwrap().remove("subnet");
    plugin["capabilities"] = json!({"portMappings": true, "ipRanges": true});
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]});
    std::fs::write(conf.join("10-pods.conflist"), list.to_string()).unwrap();
    let cni = Cni::open(CniConfig {
        state_dir: folder.path().join("cni"),
        conf_dir: conf,
        bin_dirs: vec![bin],
        time_limit: Duration::from_secs(20),
    })
    .unwrap();
    cni.start("10.98.0.0/24".parse().unwrap()).await.unwrap();
    let spec = |sandbox: &str, ports| AttachSpec {
        sandbox_id: sandbox.to_owned(),
        ports,
        ..AttachSpec::default()
    };
    let port = PortMapping {
        host_port: 8088,
        container_port: 9000,
        protocol: "TCP".to_owned(),
        host_address: None,
    };
    let attachment = cni.attach(spec("pod-1", vec![port])).await.unwrap();
    assert_eq!(attachment.addresses[0].to_string(), "10.98.0.2/24");
    let _listener = inside(&attachment, || listen("0.0.0.0:9000".parse().unwrap()));
    let other = cni.attach(spec("pod-2", Vec::new())).await.unwrap();
    let said = inside(&other, || greeting("10.98.0.2:9000".parse().unwrap()));
    assert_eq!(said, "hello");
    // Through the host port, also from other pods.
    assert_eq!(greeting("172.30.0.1:8088".parse().unwrap()), "hello");
    assert!(nft_tables().contains("plugin0_ports"), "{}", nft_tables());
    cni.stop().await.unwrap();
    assert!(!nft_tables().contains("plugin0_ports"), "{}", nft_tables());
    // The bridge stays, and no pod on it reaches the node's loopback.
    let way = std::fs::read_to_string("/proc/sys/net/ipv4/conf/plugin0/route_localnet");
    assert_eq!(way.unwrap().trim(), "0");
}
