//! Processes that the test controls: daemons that it kills and starts again, and an API server that
//! may be away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Method, StatusCode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::http::{Connection, Target};
use tests::machine::{Machine, TIMEOUT};

use super::world::PODS;

/// A daemon of ours that can be killed and run again as it was.
pub(crate) struct Daemon {
    name: &'static str,
    words: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    pid: i32,
    child: Option<Child>,
}

impl Daemon {
    pub(crate) fn find(machine: &Machine, name: &'static str, log: &str) -> anyhow::Result<Self> {
        let pid = machine.daemon(name)?;
        let strings = |file: &str| -> anyhow::Result<Vec<String>> {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}"))?;
            let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            Ok(parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect())
        };
        let pairs = strings("environ")?;
        let pair = |text: &String| {
            text.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Ok(Self {
            name,
            words: strings("cmdline")?,
            environment: pairs.iter().filter_map(pair).collect(),
            log: machine.state().join(log),
            pid,
            child: None,
        })
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// A variable for the next run.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid), Signal::SIGKILL).with_context(|| format!("kill {}", self.name))?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        while self.is_alive() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Its descriptors are closed once its last thread has ended.
    fn is_alive(&self) -> bool {
        let process = Path::new("/proc").join(self.pid.to_string());
        let threads = std::fs::read_dir(process.join("task")).map_or(0, Iterator::count);
        let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
        threads > 1 || (threads == 1 && !status.contains("State:\tZ"))
    }

    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options().append(true).create(true).open(&self.log)?;
        let (program, words) = self.words.split_first().context("a program")?;
        let mut command = Command::new(program);
        command
            .args(words)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn()?;
        self.pid = i32::try_from(child.id())?;
        self.child = Some(child);
        Ok(())
    }
}

impl Drop for Daemon {
    /// `skiff down` knows only those that `skiff up` has started.
    fn drop(&mut self) {
        if self.child.is_some()
            && let Err(error) = self.kill()
        {
            tracing::error!(name = self.name, %error, "it goes on after a test that failed");
        }
    }
}

/// Asks the API server again and again while it is away.
pub(crate) struct Api {
    pub(crate) target: Target,
    pub(crate) connection: Option<Connection>,
}

impl Api {
    pub(crate) async fn ask(
        &mut self,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let body = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(body.to_string())
        };
        let asking = async {
            loop {
                if self.connection.is_none() {
                    self.connection = self.target.connect().await.ok();
                }
                if let Some(connection) = &mut self.connection {
                    match connection.call(method.clone(), path, body.clone()).await {
                        Ok((status, answer)) if !status.is_server_error() => return (status, answer),
                        Ok(_) => {}
                        Err(_) => self.connection = None,
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let (status, answer) = tokio::time::timeout(TIMEOUT, asking)
            .await
            .with_context(|| format!("{method} {path}: no answer"))?;
        Ok((status, serde_json::from_slice(&answer).unwrap_or_default()))
    }

    pub(crate) async fn pods(&mut self) -> anyhow::Result<BTreeMap<String, Value>> {
        let (status, list) = self.ask(&Method::GET, PODS, &Value::Null).await?;
        ensure!(status.is_success(), "{list}");
        let items = list["items"].as_array().context("items")?;
        let named = |pod: &Value| {
            (
                pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                pod.clone(),
            )
        };
        Ok(items.iter().map(named).collect())
    }
}
