//! Isolated machine for each test of CNI plugins.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use network::{AttachSpec, Attachment, Cni, CniConfig, Error};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

/// Machine with a directory for configurations, and one for plugins.
pub(crate) struct Machine {
    pub(crate) folder: tempfile::TempDir,
}

impl Machine {
    /// This thread, and the programs that it starts, are in a new network namespace.
    pub(crate) fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; these tests need root");
        run("ip", "link set lo up");
        let machine = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for folder in ["conf", "bin", "ipam"] {
            fs::create_dir(machine.path(folder)).unwrap();
        }
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn open(&self) -> Cni {
        Cni::open(CniConfig {
            state_dir: self.path("state"),
            conf_dir: self.path("conf"),
            bin_dirs: vec![self.path("bin"), "/usr/lib/cni".into()],
            time_limit: Duration::from_secs(20),
        })
        .unwrap()
    }

    /// Plugin that is a shell script; its calls are logged in the file `calls`.
    pub(crate) fn plugin(&self, name: &str, script: &str) {
        let calls = self.path("calls");
        let text = format!(
            "#!/bin/sh\necho \"$CNI_COMMAND netns=$CNI_NETNS\" >>{}\n{script}\n",
            calls.display()
        );
        let path = self.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The plugin `sticky` fails at DEL while this file exists.
    pub(crate) fn sticky(&self) -> PathBuf {
        let marker = self.path("stuck");
        let refuse = format!("[ $CNI_COMMAND = DEL ] && [ -e {} ] && exit 7; cat", marker.display());
        self.plugin("sticky", &refuse);
        marker
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn commands(&self) -> Vec<String> {
        let first = |call: &String| call.split(' ').next().unwrap().to_owned();
        self.calls().iter().map(first).collect()
    }

    pub(crate) fn bridge(&self) -> Value {
        json!({"type": "bridge", "bridge": "cni-test", "isGateway": true,
            "ipam": {"type": "host-local", "dataDir": self.path("ipam"), "ranges": [[{"subnet": "10.77.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}]}})
    }

    pub(crate) fn configure(&self, version: &str, plugins: &[Value]) {
        let list = json!({"cniVersion": version, "name": "pods", "plugins": plugins});
        fs::write(self.path("conf").join("10-pods.conflist"), list.to_string()).unwrap();
    }

    /// Addresses allocated by host-local.
    pub(crate) fn held(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("ipam").join("pods"))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("10.")).collect()
    }

    pub(crate) fn is_clean(&self) {
        assert_eq!(self.held(), Vec::<String>::new());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.folder.path().to_str().unwrap()), "{mounts}");
        // The kernel deletes the interfaces of a namespace asynchronously.
        let gone = (0..3000).any(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
            !run("ip", "-o link").contains("veth")
        });
        assert!(gone, "{}", run("ip", "-o link"));
    }
}

pub(crate) fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().unwrap();
    let (stdout, stderr) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{program} {words}: {stderr}");
    String::from_utf8(stdout).unwrap()
}

pub(crate) fn spec(sandbox: &str) -> AttachSpec {
    AttachSpec {
        sandbox_id: sandbox.to_owned(),
        ..AttachSpec::default()
    }
}

pub(crate) fn inside(attachment: &Attachment, words: &str) -> String {
    run("nsenter", &format!("--net={} {words}", attachment.netns.display()))
}

pub(crate) fn cause(error: &Error) -> String {
    error.to_string()
}
