//! Environment of one test: a state directory, a cgroup root, and a root file system made of
//! busybox.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_spec::runtime::{LinuxResourcesBuilder, ProcessBuilder, Spec};
use runtime::{
    Class, Config, Connected, ContainerSpec, Containerd, ContainerdConfig, Embedded, Event, ExecResult, ExecSpec, Exit,
    Limits, PodId, Runtime, Sandbox, SandboxSpec, State, Stdin, User,
};
use tokio::sync::broadcast;

mod daemon;
pub(crate) mod holders;
pub(crate) mod remains;
pub(crate) mod sessions;
pub(crate) mod volumes;

pub(crate) use daemon::Daemon;

/// Receiver that reports an existing network.
pub(crate) fn connected() -> Connected {
    let (told, connected) = tokio::sync::oneshot::channel();
    told.send(()).unwrap();
    connected
}

/// Runtime under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Embedded,
    Containerd,
}

/// Runs each of these functions as a test of each runtime.
#[allow(unused_macros, reason = "some tests are about one runtime")]
macro_rules! contract {
    ($($name:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test]
                async fn $name() {
                    Box::pin(super::$name(super::Kind::Embedded)).await;
                }
            )*
        }
        mod containerd {
            $(
                #[tokio::test]
                async fn $name() {
                    Box::pin(super::$name(super::Kind::Containerd)).await;
                }
            )*
        }
    };
}
#[allow(unused_imports, reason = "some tests are about one runtime")]
pub(crate) use contract;

pub(crate) struct Machine {
    pub(crate) kind: Kind,
    pub(crate) runtime: Box<dyn Runtime>,
    pub(crate) events: broadcast::Receiver<Event>,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) cgroup_root: String,
    /// The containerd of this test.
    pub(crate) daemon: Option<Daemon>,
    /// The layer as a snapshot in it.
    pub(crate) snapshot: Option<String>,
}

pub(crate) fn config(directory: &Path, cgroup_root: &str) -> Config {
    Config {
        program: PathBuf::from(env!("CARGO_BIN_EXE_runtime-test-supervisor")),
        ..Config::new(directory.join("state"), cgroup_root)
    }
}

/// Opens a runtime as a starting agent does.
pub(crate) async fn open(kind: Kind, directory: &Path, cgroup_root: &str) -> Box<dyn Runtime> {
    match kind {
        Kind::Embedded => Box::new(Embedded::open(config(directory, cgroup_root)).await.unwrap()),
        Kind::Containerd => {
            let folder = directory.join("containerd");
            let (address, namespace) = (Daemon::address(&folder), Daemon::namespace(&folder));
            let config = ContainerdConfig {
                program: PathBuf::from(env!("CARGO_BIN_EXE_runtime-test-supervisor")),
                runtimes: vec![directory.join("runtimes")],
                ..ContainerdConfig::new(directory.join("state"), cgroup_root, address, namespace)
            };
            Box::new(Containerd::open(config).await.unwrap())
        }
    }
}

/// Creates a layer with busybox and its usual links.
pub(crate) fn busybox(directory: &Path) {
    for made in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
        fs::create_dir_all(directory.join(made)).unwrap();
    }
    fs::copy("/bin/busybox", directory.join("bin/busybox")).unwrap();
    for name in [
        "sh", "sleep", "cat", "echo", "yes", "hostname", "id", "ls", "grep", "ps", "head", "dd", "mount", "printf",
        "tr", "stty",
    ] {
        symlink("busybox", directory.join("bin").join(name)).unwrap();
    }
    fs::write(
        directory.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nweb:x:101:102::/srv:/bin/sh\n",
    )
    .unwrap();
    fs::write(directory.join("etc/group"), "root:x:0:\nweb:x:102:\nlogs:x:77:web\n").unwrap();
}

impl Machine {
    pub(crate) async fn new(name: &str) -> Self {
        Self::of(Kind::Embedded, name).await
    }

    pub(crate) async fn of(kind: Kind, name: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests need root");
        let directory = tempfile::Builder::new().prefix("skiff-runtime-").tempdir().unwrap();
        busybox(&directory.path().join("layer"));
        fs::create_dir(directory.path().join("logs")).unwrap();
        let unique = directory.path().file_name().unwrap().to_string_lossy();
        let cgroup_root = format!("skiff-test-runtime/{name}-{unique}");
        let daemon = match kind {
            Kind::Embedded => None,
            Kind::Containerd => Some(Daemon::start(&directory.path().join("containerd")).await),
        };
        let snapshot = daemon
            .as_ref()
            .map(|daemon| daemon.snapshot("layer", &directory.path().join("layer")));
        let runtime = open(kind, directory.path(), &cgroup_root).await;
        let events = runtime.events();
        Self {
            kind,
            runtime,
            events,
            directory,
            cgroup_root,
            daemon,
            snapshot,
        }
    }

    pub(crate) fn sandbox_spec(id: &str) -> SandboxSpec {
        let pod = PodId {
            namespace: "default".to_owned(),
            name: format!("pod-{id}"),
            uid: format!("uid-{id}"),
        };
        let (share_process_namespace, host_pid, host_ipc) = (false, false, false);
        let (id, hostname) = (id.to_owned(), "pod".to_owned());
        let limits = Limits::default();
        let netns = None;
        SandboxSpec {
            id,
            pod,
            attempt: 0,
            hostname,
            netns,
            share_process_namespace,
            host_pid,
            host_ipc,
            user_ids: None,
            se_linux_level: None,
            handler: String::new(),
            class: Class::default(),
            sysctls: Vec::new(),
            limits,
        }
    }

    pub(crate) async fn sandbox(&self, id: &str) -> Sandbox {
        self.runtime
            .create_sandbox(Self::sandbox_spec(id), connected())
            .await
            .unwrap()
    }

    pub(crate) fn log(&self, id: &str) -> PathBuf {
        self.directory.path().join("logs").join(format!("{id}.log"))
    }

    pub(crate) fn container(&self, id: &str, argv: &[&str]) -> ContainerSpec {
        let argv: Vec<String> = argv.iter().map(|text| (*text).to_owned()).collect();
        let env = vec!["PATH=/bin".to_owned(), "GREETING=hello".to_owned()];
        let mut process = ProcessBuilder::default().args(argv).env(env).cwd("/").build().unwrap();
        process.set_terminal(Some(false)).set_no_new_privileges(Some(true));
        let mut spec = Spec::default();
        let root = oci_spec::runtime::RootBuilder::default()
            .path("unused")
            .readonly(false)
            .build()
            .unwrap();
        spec.set_process(Some(process)).set_root(Some(root));
        ContainerSpec {
            id: id.to_owned(),
            name: "main".to_owned(),
            attempt: 0,
            image: "busybox:1".to_owned(),
            image_id: "sha256:0".to_owned(),
            layers: vec![self.directory.path().join("layer")],
            snapshot: self.snapshot.clone(),
            spec,
            volumes: Vec::new(),
            user: User::default(),
            pid_of: None,
            stdin: Stdin::Closed,
            log_path: self.log(id),
            annotations: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
        }
    }

    pub(crate) fn shell(&self, id: &str, script: &str) -> ContainerSpec {
        self.container(id, &["/bin/sh", "-c", script])
    }

    /// Creates and starts a container; returns its PID.
    pub(crate) async fn run(&self, sandbox: &str, spec: ContainerSpec) -> i32 {
        let id = spec.id.clone();
        self.runtime.create_container(sandbox, spec).await.unwrap();
        let State::Running { pid, .. } = self.runtime.start_container(sandbox, &id).await.unwrap().state else {
            panic!("not running")
        };
        pid
    }

    pub(crate) async fn event(&mut self) -> Event {
        tokio::time::timeout(Duration::from_mins(1), self.events.recv())
            .await
            .expect("no event")
            .unwrap()
    }

    pub(crate) async fn exit(&mut self) -> Exit {
        match self.event().await {
            Event::ContainerExited { exit, .. } => exit,
            other @ Event::SandboxLost { .. } => panic!("{other:?}"),
        }
    }

    /// Returns the container's output, without the log's prefixes.
    pub(crate) fn output(&self, id: &str) -> String {
        let log = fs::read_to_string(self.log(id)).unwrap();
        log.lines()
            .map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned() + "\n")
            .collect()
    }

    pub(crate) async fn exec(&self, sandbox: &str, container: &str, script: &str, timeout: Duration) -> ExecResult {
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        let spec = ExecSpec {
            argv,
            env: Vec::new(),
            timeout,
            output_limit: 16 << 10,
        };
        self.runtime.exec(sandbox, container, spec).await.unwrap()
    }

    /// Drops the runtime as a crash would, and leaves an unusable one in its place.
    pub(crate) async fn crash(&mut self) {
        let root = format!("{}-crashed", self.cgroup_root);
        let nothing = Config {
            state_dir: self.directory.path().join("nothing"),
            ..config(self.directory.path(), &root)
        };
        let nothing = Box::new(Embedded::open(nothing).await.unwrap());
        drop(std::mem::replace(&mut self.runtime, nothing));
    }

    /// Opens the runtime again, as the next agent after a crash.
    pub(crate) async fn reopen(&mut self) {
        let reopened = open(self.kind, self.directory.path(), &self.cgroup_root).await;
        self.events = reopened.events();
        std::mem::replace(&mut self.runtime, reopened).cleanup().await.unwrap();
    }

    /// Tears down and checks that nothing is left.
    pub(crate) async fn finish(mut self) {
        self.runtime.cleanup().await.unwrap();
        if let Some(daemon) = self.daemon.take() {
            daemon.finish().await;
        }
        assert_eq!(self.leaks(), Vec::<String>::new());
    }

    /// Cgroups, mounts and processes that refer to this test.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let mut found = Vec::new();
        let directory = self.directory.path().to_str().unwrap();
        for mount in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
            if mount.contains(directory) {
                found.push(format!("mount {mount}"));
            }
        }
        let groups = remains::groups(&self.cgroup_root);
        found.extend(groups.iter().map(|group| format!("cgroup {}", group.display())));
        for (pid, works) in remains::processes(self.directory.path()) {
            // A logger's working directory is `/`.
            if works || self.daemon.is_none() {
                found.push(format!("process {pid}"));
            }
        }
        found
    }
}

impl Drop for Machine {
    /// Removes the remains of failed tests, too.
    fn drop(&mut self) {
        drop(self.daemon.take());
        remains::remove(self.directory.path(), &self.cgroup_root);
    }
}

/// Sets limits in a configuration.
pub(crate) fn limit(spec: &mut ContainerSpec, memory: Option<i64>, quota: Option<i64>, pids: Option<i64>) {
    use oci_spec::runtime::{LinuxCpuBuilder, LinuxMemoryBuilder, LinuxPidsBuilder};
    let mut resources = LinuxResourcesBuilder::default().build().unwrap();
    if let Some(memory) = memory {
        resources.set_memory(Some(LinuxMemoryBuilder::default().limit(memory).build().unwrap()));
    }
    if let Some(quota) = quota {
        resources.set_cpu(Some(
            LinuxCpuBuilder::default()
                .quota(quota)
                .period(100_000_u64)
                .build()
                .unwrap(),
        ));
    }
    if let Some(pids) = pids {
        resources.set_pids(Some(LinuxPidsBuilder::default().limit(pids).build().unwrap()));
    }
    let mut linux = spec.spec.linux().clone().unwrap_or_default();
    linux.set_resources(Some(resources));
    spec.spec.set_linux(Some(linux));
}

/// Polls until the condition holds, if there is no event for it.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_mins(1), wait).await.is_ok(),
        "{what}"
    );
}
