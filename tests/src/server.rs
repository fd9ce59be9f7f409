//! A control plane alone: the real program, its own state directory, no node.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::http::Target;
use crate::machine::{Namespace, TIMEOUT};
use crate::process;

/// A running control plane; it is killed when this is dropped.
pub struct Server {
    home: tempfile::TempDir,
    listen: String,
    /// Further arguments.
    arguments: Vec<String>,
    child: Option<Child>,
    /// Lives as long as the server.
    namespace: Option<Namespace>,
}

impl Server {
    /// Starts it on the address `listen`, in the network namespace of the calling thread, on a fresh state directory.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub fn start(namespace: Option<Namespace>, listen: &str) -> anyhow::Result<Self> {
        Self::start_with(namespace, listen, &[])
    }

    /// Like [`Server::start`], with further arguments.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start_with(namespace: Option<Namespace>, listen: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("skiff-").tempdir()?;
        let mut server = Self {
            home,
            listen: listen.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            child: None,
            namespace,
        };
        server.again()?;
        Ok(server)
    }

    /// Starts another control plane of the same cluster, with a copy of its keys and the same arguments.
    ///
    /// # Errors
    /// As [`Server::beside`].
    pub fn joined(&self, listen: &str) -> anyhow::Result<Self> {
        Self::beside(self.home.path(), listen, self.arguments.clone())
    }

    /// Starts another control plane of the cluster that has this state directory.
    ///
    /// # Errors
    /// When the keys cannot be copied, or the program cannot be started.
    pub fn beside(state: &Path, listen: &str, arguments: Vec<String>) -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("skiff-").tempdir()?;
        let keys = Path::new("controlplane/pki");
        std::fs::create_dir_all(home.path().join("controlplane"))?;
        process::run(
            Command::new("cp")
                .arg("-a")
                .args([state.join(keys), home.path().join(keys)]),
        )?;
        let mut server = Self {
            home,
            listen: listen.to_owned(),
            arguments,
            child: None,
            namespace: None,
        };
        server.again()?;
        Ok(server)
    }

    /// Starts it on the state that is there.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub fn again(&mut self) -> anyhow::Result<()> {
        self.again_by(Command::new(process::programs()?.join("skiff-controlplane")))
    }

    /// Like [`Server::again`], by a command that ends with the name of the program.
    ///
    /// # Errors
    /// As [`Server::again`].
    pub fn again_by(&mut self, mut command: Command) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("controlplane.log"))?;
        command
            .arg("--state-dir")
            .arg(self.home.path())
            .args(["--listen", &self.listen])
            .args(&self.arguments);
        self.child = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        self.home.path()
    }

    /// The process.
    ///
    /// # Errors
    /// Fails if it does not run.
    pub fn pid(&self) -> anyhow::Result<i32> {
        Ok(i32::try_from(self.child.as_ref().context("a running server")?.id())?)
    }

    /// Waits for `/readyz` and returns how to talk to it as the administrator.
    ///
    /// # Errors
    /// Fails if it does not become ready; the message is its log.
    pub async fn ready(&self) -> anyhow::Result<Target> {
        let up = async {
            loop {
                if let Ok(target) = Target::from_kubeconfig(&self.home.path().join("admin.kubeconfig"))
                    && let Ok(mut connection) = target.connect().await
                    && let Ok((StatusCode::OK, _)) = connection.call(Method::GET, "/readyz", Bytes::new()).await
                {
                    return target;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, up)
            .await
            .with_context(|| std::fs::read_to_string(self.home.path().join("controlplane.log")).unwrap_or_default())
    }

    /// Kills it with SIGKILL and waits for its end.
    ///
    /// # Errors
    /// Fails if it did not run.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("a running server")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks it to stop and fails when it does not end well.
    ///
    /// # Errors
    /// Fails if it ends with another code than 0.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("a running server")?;
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
        let status = child.wait()?;
        let log = std::fs::read_to_string(self.home.path().join("controlplane.log"))?;
        anyhow::ensure!(status.success(), "ended with {status}: {log}");
        anyhow::ensure!(!log.contains("ERROR"), "an error in the log: {log}");
        drop(self.namespace.take());
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some()
            && let Err(error) = self.kill()
        {
            tracing::error!(%error, "kill the control plane");
        }
    }
}
