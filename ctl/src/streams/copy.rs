//! `skiff cp`: copies files from and to a container, by the container's `tar`.
//!
//! Archives from a container are untrusted: only files and directories are extracted, and only
//! below the destination.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Handle;

use super::session;
use crate::arguments::{CopyOptions, Place};
use crate::client::api::{Api, refused};
use crate::client::pods;
use crate::terminal::{self, Waiting};

const BUFFER: usize = 64 << 10;
/// Maximum length of tar's messages that are kept.
const SAID: u64 = 4 << 10;

/// Path in a pod.
#[derive(Debug, PartialEq, Eq)]
struct Remote {
    namespace: Option<String>,
    pod: String,
    path: String,
}

/// Parses `[NAMESPACE/]POD:PATH`; `None` for a local path, which may have a colon after a slash or
/// after a leading dot.
fn remote(text: &str) -> Option<Remote> {
    let (pod, path) = text.split_once(':')?;
    if pod.is_empty() || path.is_empty() || pod.starts_with(['.', '/']) {
        return None;
    }
    let (namespace, pod) = match pod.split_once('/') {
        Some((namespace, pod)) if !pod.contains('/') => (Some(namespace.to_owned()), pod),
        Some(_) => return None,
        None => (None, pod),
    };
    Some(Remote {
        namespace,
        pod: pod.to_owned(),
        path: path.to_owned(),
    })
}

struct Container<'a> {
    pods: kube::Api<k8s_openapi::api::core::v1::Pod>,
    pod: String,
    name: Option<&'a str>,
}

impl<'a> Container<'a> {
    async fn of(api: &Api, remote: &Remote, options: &'a CopyOptions) -> anyhow::Result<Self> {
        let namespace = remote.namespace.as_ref().unwrap_or(&options.scope.namespace);
        Ok(Self {
            pods: api.pods(namespace),
            pod: pods::one(api, namespace, &remote.pod).await?,
            name: options.container.as_deref(),
        })
    }

    async fn run(&self, command: &[&str], stdin: bool) -> anyhow::Result<AttachedProcess> {
        let parameters = AttachParams {
            container: self.name.map(str::to_owned),
            stdin,
            stdout: true,
            stderr: true,
            tty: false,
            max_stdin_buf_size: Some(BUFFER),
            max_stdout_buf_size: Some(BUFFER),
            max_stderr_buf_size: Some(BUFFER),
        };
        let run = self.pods.exec(&self.pod, command.iter().copied(), &parameters);
        run.await.map_err(refused)
    }

    async fn is_directory(&self, path: &str) -> anyhow::Result<bool> {
        let mut process = self.run(&["test", "-d", path], false).await?;
        let status = process.take_status().context("no status")?;
        let ended = status.await.and_then(|status| status.status);
        Ok(ended.as_deref() == Some("Success"))
    }
}

/// Blocking adapter of a stream, for blocking threads.
struct Blocking<T> {
    stream: T,
    runtime: Handle,
}

impl<T> Blocking<T> {
    fn new(stream: T) -> Self {
        Self {
            stream,
            runtime: Handle::current(),
        }
    }
}

impl<T: AsyncRead + Unpin> Read for Blocking<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.read(buffer))
    }
}

impl<T: AsyncWrite + Unpin> Write for Blocking<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.runtime.block_on(self.stream.flush())
    }
}

impl<T: AsyncWrite + Unpin> Blocking<T> {
    fn shutdown(mut self) -> io::Result<()> {
        self.runtime.block_on(self.stream.shutdown())
    }
}

/// Runs the command.
pub(crate) async fn run(place: &Place, options: &CopyOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let waiting = Waiting::start(format!("copying {} to {}", options.from, options.to));
    match (remote(&options.from), remote(&options.to)) {
        (Some(from), None) => {
            let container = Container::of(&api, &from, options).await?;
            download(&container, &from.path, Path::new(&options.to)).await?;
        }
        (None, Some(to)) => {
            let container = Container::of(&api, &to, options).await?;
            upload(&container, Path::new(&options.from), &to.path).await?;
        }
        (Some(_), Some(_)) | (None, None) => bail!("one of the two must be in a pod, as POD:PATH"),
    }
    waiting.done(&format!("copied {} to {}", options.from, options.to));
    Ok(())
}

/// Returns the last component of a path in a container.
fn last(path: &str) -> anyhow::Result<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    ensure!(!matches!(name, "" | "." | ".."), "{path:?} has no name of its own");
    Ok(name)
}

/// Waits for a program; fails with the beginning of its messages unless it succeeded.
async fn outcome(mut process: AttachedProcess, said: impl AsyncRead + Unpin) -> anyhow::Result<()> {
    let status = process.take_status().context("no status")?;
    let mut text = String::new();
    let read = async {
        let mut said = said;
        let read = (&mut said).take(SAID).read_to_string(&mut text).await;
        tokio::io::copy(&mut said, &mut tokio::io::sink()).await?;
        read
    };
    let (read, status) = tokio::join!(read, status);
    drop(read);
    let failed = status
        .as_ref()
        .is_none_or(|status| status.status.as_deref() != Some("Success"));
    if failed && !text.trim().is_empty() {
        bail!("{}", text.trim());
    }
    session::code(status).map(drop)
}

async fn upload(container: &Container<'_>, from: &Path, to: &str) -> anyhow::Result<()> {
    let absolute = fs::canonicalize(from).with_context(|| format!("{}", from.display()))?;
    let name = absolute
        .file_name()
        .and_then(OsStr::to_str)
        .context("the file has no name")?;
    let (directory, name) = if to.ends_with('/') || container.is_directory(to).await? {
        (to.to_owned(), name.to_owned())
    } else {
        let directory = to
            .trim_end_matches('/')
            .rsplit_once('/')
            .map_or(".", |(parent, _)| parent);
        let directory = if directory.is_empty() { "/" } else { directory };
        (directory.to_owned(), last(to)?.to_owned())
    };
    let mut process = container.run(&["tar", "-xmf", "-", "-C", &directory], true).await?;
    let stdin = process.stdin().context("no standard input")?;
    let (stdout, stderr) = (process.stdout(), process.stderr().context("no errors")?);
    let writing = tokio::task::spawn_blocking(move || pack(Blocking::new(stdin), &name, &absolute)?.shutdown());
    drop(stdout);
    let (written, ended) = tokio::join!(writing, outcome(process, stderr));
    ended?;
    written?.context("send the files")
}

/// Archives a file, or a directory with its contents, as `name`. A symbolic link as the path itself
/// is followed; links below it are not.
fn pack<W: Write>(archive: W, name: &str, path: &Path) -> io::Result<W> {
    let path = &fs::canonicalize(path)?;
    let mut archive = tar::Builder::new(archive);
    archive.follow_symlinks(false);
    if path.is_dir() {
        archive.append_dir_all(name, path)?;
    } else {
        archive.append_path_with_name(path, name)?;
    }
    archive.into_inner()
}

async fn download(container: &Container<'_>, from: &str, to: &Path) -> anyhow::Result<()> {
    let name = last(from)?.to_owned();
    let directory = from
        .trim_end_matches('/')
        .rsplit_once('/')
        .map_or(".", |(parent, _)| parent);
    let directory = if directory.is_empty() { "/" } else { directory };
    let target = if to.is_dir() { to.join(&name) } else { to.to_owned() };
    let mut process = container
        .run(&["tar", "-cf", "-", "-C", directory, &name], false)
        .await?;
    let stdout = process.stdout().context("no output")?;
    let stderr = process.stderr().context("no errors")?;
    let reading = tokio::task::spawn_blocking(move || unpack(Blocking::new(stdout), &name, &target));
    let (read, ended) = tokio::join!(reading, outcome(process, stderr));
    ended?;
    for skipped in read?? {
        terminal::note(format!(
            "warning: {} is no file and no directory: it is left out",
            printable(&skipped)
        ));
    }
    Ok(())
}

fn printable(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

/// Extracts entries below `name` to `target`; returns the ones that were skipped.
fn unpack(archive: impl Read, name: &str, target: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut archive = tar::Archive::new(archive);
    let mut skipped = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let below = path
            .strip_prefix(name)
            .ok()
            .filter(|below| below.components().all(|part| matches!(part, Component::Normal(_))));
        let Some(below) = below.map(Path::to_owned) else {
            bail!("the archive has {}, which was not asked for", printable(&path));
        };
        let place = if below.as_os_str().is_empty() {
            target.to_owned()
        } else {
            target.join(&below)
        };
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
        } else if kind.is_file() {
            if let Some(parent) = place.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
            }
            let written = fs::File::create(&place).and_then(|mut file| io::copy(&mut entry, &mut file));
            written.with_context(|| format!("write {}", place.display()))?;
        } else if skipped.len() < 100 {
            skipped.push(path);
        }
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_path_is_told_from_a_local_one() {
        let read = |text: &str| remote(text).map(|remote| (remote.namespace, remote.pod, remote.path));
        assert_eq!(read("web:/etc/x"), Some((None, "web".to_owned(), "/etc/x".to_owned())));
        assert_eq!(
            read("n/web:x"),
            Some((Some("n".to_owned()), "web".to_owned(), "x".to_owned()))
        );
        for text in ["/tmp/a:b", "./a:b", "a", "a:", ":b", "a/b/c:d"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(last("/").is_err() && last("a/..").is_err() && last("/a/b/").is_ok_and(|name| name == "b"));
    }

    #[test]
    fn a_directory_is_sent_with_what_is_in_it() -> anyhow::Result<()> {
        let home = std::env::temp_dir().join(format!("skiff-cp-link-{}", std::process::id()));
        fs::create_dir_all(home.join("real"))?;
        fs::write(home.join("real/file"), "x")?;
        std::os::unix::fs::symlink("real", home.join("link"))?;
        let archive = pack(Vec::new(), "sent", &home.join("link"))?;
        unpack(&*archive, "sent", &home.join("back"))?;
        assert_eq!(fs::read_to_string(home.join("back/file"))?, "x");
        fs::remove_dir_all(home)?;
        Ok(())
    }

    #[test]
    fn attack_3_an_archive_of_a_container_stays_below_the_destination() -> anyhow::Result<()> {
        let home = std::env::temp_dir().join(format!("skiff-cp-{}", std::process::id()));
        fs::create_dir_all(home.join("in"))?;
        let entry = |path: &str, kind: tar::EntryType| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(u64::from(kind.is_file()));
            header.set_mode(0o644);
            if let Some(field) = header.as_gnu_mut().map(|gnu| &mut gnu.name)
                && let Some(field) = field.get_mut(..path.len())
            {
                field.copy_from_slice(path.as_bytes());
            }
            if kind.is_symlink() {
                header.set_link_name("/etc")?;
            }
            header.set_cksum();
            anyhow::Ok(header)
        };
        let archive = |entries: &[(&str, tar::EntryType)]| {
            let mut builder = tar::Builder::new(Vec::new());
            for (path, kind) in entries {
                let header = entry(path, *kind)?;
                let contents: &[u8] = if kind.is_file() { b"x" } else { b"" };
                builder.append(&header, contents)?;
            }
            anyhow::Ok(builder.into_inner()?)
        };
        let file = tar::EntryType::Regular;
        for path in ["../out", "/out", "other", "d/../../out"] {
            assert!(
                unpack(&*archive(&[(path, file)])?, "d", &home.join("in")).is_err(),
                "{path}"
            );
        }
        let through = archive(&[
            ("d", tar::EntryType::Directory),
            ("d/link", tar::EntryType::Symlink),
            ("d/file", file),
        ])?;
        let skipped = unpack(&*through, "d", &home.join("in"))?;
        assert_eq!(skipped, [PathBuf::from("d/link")]);
        assert!(home.join("in/file").exists() && !home.join("in/link").exists() && !home.join("out").exists());
        fs::remove_dir_all(home)?;
        Ok(())
    }
}
