//! Where containers' logs lie: `NAMESPACE_NAME_UID/CONTAINER/ATTEMPT.log`, as a kubelet's
//! (pkg/kubelet/kuberuntime/helpers.go `BuildPodLogsDirectory`).

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::{fs, io};

use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::Pod;
use tracing::warn;

/// Maximum length of a link's name without its suffix (pkg/kubelet/kuberuntime/legacy.go `logSymlink`).
const LONGEST_NAME: usize = 251;

/// Directories of containers' logs.
#[derive(Clone, Debug)]
pub struct LogFiles {
    /// One entry for each pod: the directory of its logs, or a link to where that is.
    own: PathBuf,
    /// Where new pods' logs lie instead. Other programs may have some there, too.
    chosen: Option<PathBuf>,
}

impl LogFiles {
    /// Logs in the state directory, or in `chosen` with links in the directory `containers` beside
    /// it, by whose names collectors know pod, namespace and container.
    pub fn new(state_directory: &Path, chosen: Option<PathBuf>) -> Self {
        let own = state_directory.join("logs");
        Self {
            chosen: chosen.filter(|chosen| *chosen != own),
            own,
        }
    }

    fn links(&self) -> Option<PathBuf> {
        Some(self.chosen.as_ref()?.with_file_name("containers"))
    }

    /// Makes the directories.
    pub(crate) fn make(&self) -> io::Result<()> {
        let made = [
            (Some(self.own.clone()), 0o700),
            (self.chosen.clone(), 0o750),
            (self.links(), 0o755),
        ];
        for (path, mode) in made {
            if let Some(path) = path {
                DirBuilder::new().recursive(true).mode(mode).create(&path)?;
                runtime::spread(&path);
            }
        }
        Ok(())
    }

    /// Directory of a pod's logs, which may not exist yet.
    pub(crate) fn of(&self, pod: &Pod) -> PathBuf {
        let name = format!("{}_{}_{}", pods::namespace(pod), pods::name(pod), pods::uid(pod));
        let own = self.own.join(&name);
        match &self.chosen {
            Some(chosen) if !own.is_dir() => chosen.join(name),
            _ => fs::read_link(&own).unwrap_or(own),
        }
    }

    /// Makes a pod's directory by `make`, noting before where it is.
    pub(crate) fn place(&self, pod: &Pod, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
        let directory = self.of(pod);
        if let Some(name) = directory.file_name()
            && !directory.starts_with(&self.own)
        {
            ignore(symlink(&directory, self.own.join(name)), io::ErrorKind::AlreadyExists)?;
        }
        make(&directory)?;
        Ok(directory)
    }

    fn link_of(&self, pod: &Pod, container: &str, id: &str) -> Option<PathBuf> {
        let mut name = format!("{}{container}-{id}", linked(pod));
        name.truncate(LONGEST_NAME);
        Some(self.links()?.join(name + ".log"))
    }

    /// Links a container's log to `POD_NAMESPACE_CONTAINER-ID.log`.
    pub(crate) fn link(&self, pod: &Pod, container: &str, attempt: u32, id: &str) {
        if let Some(link) = self.link_of(pod, container, id) {
            let log = self.of(pod).join(container).join(format!("{attempt}.log"));
            if let Err(error) = ignore(symlink(log, &link), io::ErrorKind::AlreadyExists) {
                warn!(path = %link.display(), %error, "a log could not be linked");
            }
        }
    }

    /// Removes the link of a removed container.
    pub(crate) fn unlink(&self, pod: &Pod, container: &str, id: &str) {
        if let Some(link) = self.link_of(pod, container, id)
            && let Err(error) = ignore(fs::remove_file(&link), io::ErrorKind::NotFound)
        {
            warn!(path = %link.display(), %error, "the link of a log could not be removed");
        }
    }

    /// Removes a pod's logs.
    pub(crate) fn remove(&self, pod: &Pod) -> io::Result<()> {
        let name = format!("{}_{}_{}", pods::namespace(pod), pods::name(pod), pods::uid(pod));
        remove(&self.own.join(name))?;
        self.sweep(&linked(pod))
    }

    /// Returns the entries of pods that are not listed.
    pub(crate) fn old(&self, listed: &BTreeSet<String>) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.own).into_iter().flatten().flatten();
        let is_old = |entry: &fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            !listed.contains(name.rsplit('_').next().unwrap_or_default())
        };
        entries.filter(is_old).map(|entry| entry.path()).collect()
    }

    /// Removes old entries with their logs, and links to logs that are gone.
    pub(crate) fn remove_old(&self, old: &[PathBuf]) -> io::Result<()> {
        let removed: Vec<io::Result<()>> = old.iter().map(|entry| remove(entry)).collect();
        self.sweep("")?;
        removed.into_iter().collect()
    }

    /// Removes links whose names begin so and whose logs are gone, but for other programs'.
    fn sweep(&self, beginning: &str) -> io::Result<()> {
        let (Some(chosen), Some(links)) = (&self.chosen, self.links()) else {
            return Ok(());
        };
        for entry in fs::read_dir(links)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(beginning)
                && let Ok(log) = fs::read_link(&path)
                && (log.starts_with(chosen) || log.starts_with(&self.own))
                && !log.exists()
            {
                ignore(fs::remove_file(&path), io::ErrorKind::NotFound)?;
            }
        }
        Ok(())
    }

    /// Removes all logs and links.
    pub fn purge(&self) -> io::Result<()> {
        ignore(self.remove_old(&self.old(&BTreeSet::new())), io::ErrorKind::NotFound)?;
        trees::remove(&self.own)?;
        for path in [self.chosen.clone(), self.links()].into_iter().flatten() {
            // Others' logs are there.
            let removed = ignore(fs::remove_dir(path), io::ErrorKind::DirectoryNotEmpty);
            ignore(removed, io::ErrorKind::NotFound)?;
        }
        Ok(())
    }
}

/// Returns how the names of a pod's links begin.
fn linked(pod: &Pod) -> String {
    format!("{}_{}_", pods::name(pod), pods::namespace(pod))
}

/// Removes a pod's entry, and the logs first if it is a link to them.
fn remove(entry: &Path) -> io::Result<()> {
    if let Ok(directory) = fs::read_link(entry) {
        trees::remove(&directory)?;
    }
    trees::remove(entry)
}

fn ignore(outcome: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == kind { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    fn wrote(files: &LogFiles, pod: &Pod) -> PathBuf {
        let directory = files.place(pod, |directory| fs::create_dir_all(directory.join("main")));
        let log = directory.unwrap().join("main/0.log");
        fs::write(&log, "x").unwrap();
        files.link(pod, "main", 0, "c0ffee");
        log
    }

    #[test]
    fn logs_lie_where_they_were_begun_and_go_with_their_links() {
        let root = tempfile::tempdir().unwrap();
        let (state, var) = (root.path().join("state"), root.path().join("var"));
        let before = LogFiles::new(&state, None);
        before.make().unwrap();
        let earlier = wrote(&before, &pod("1"));
        assert!(earlier.starts_with(&state));

        let files = LogFiles::new(&state, Some(var.join("pods")));
        files.make().unwrap();
        assert_eq!(wrote(&files, &pod("1")), earlier, "of a pod that was there before");
        fs::remove_file(var.join("containers/web_default_main-c0ffee.log")).unwrap();
        let log = wrote(&files, &pod("2"));
        assert_eq!(log, var.join("pods/default_web_2/main/0.log"));
        let link = var.join("containers/web_default_main-c0ffee.log");
        assert_eq!(fs::read_to_string(&link).unwrap(), "x");
        assert_eq!(
            before.of(&pod("2")),
            var.join("pods/default_web_2"),
            "without the flag again"
        );

        fs::create_dir(var.join("pods/default_foreign_3")).unwrap();
        symlink("/nowhere/0.log", var.join("containers/web_default_foreign-1.log")).unwrap();
        assert_eq!(
            files.old(&BTreeSet::from(["2".to_owned()])),
            [state.join("logs/default_web_1")]
        );
        files.remove(&pod("2")).unwrap();
        assert!(!log.exists() && fs::symlink_metadata(&link).is_err());
        wrote(&files, &pod("4"));
        files.purge().unwrap();
        assert!(!state.join("logs").exists());
        let left = |name: &str| fs::read_dir(var.join(name)).unwrap().count();
        assert_eq!((left("pods"), left("containers")), (1, 1), "those of another program");
    }

    #[test]
    fn a_long_name_of_a_link_is_cut() {
        let files = LogFiles::new(Path::new("/state"), Some("/var/log/pods".into()));
        let mut long = pod("1");
        long.metadata.name = Some("n".repeat(250));
        let link = files.link_of(&long, "main", "c0ffee").unwrap();
        assert_eq!(link.file_name().unwrap().len(), 255);
    }
}
