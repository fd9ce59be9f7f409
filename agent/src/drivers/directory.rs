//! Directory that stands for a kubelet's `/var/lib/kubelet`, and whose it is: pods' volumes that
//! another kubelet has mounted there are nothing for this agent, even while that one is stopped.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tracing::warn;

use super::files;
use crate::node::devices::registration;

/// File with the path of the owner's state directory.
const OWNER: &str = ".skiff-agent";

/// Returns the chosen directory, or the agent's own if a kubelet has the chosen one.
pub fn claim(chosen: Option<&Path>, state_directory: &Path) -> PathBuf {
    let own = state_directory.join("kubelet");
    let Some(chosen) = chosen else {
        return own;
    };
    if is_own(chosen, state_directory) {
        return chosen.to_owned();
    }
    let marked = if chosen.join("pods").exists() || chosen.join(OWNER).exists() {
        Err(io::Error::other("a kubelet has it"))
    } else {
        files::make(chosen).and_then(|()| fs::write(chosen.join(OWNER), state_directory.as_os_str().as_bytes()))
    };
    let Err(error) = marked else {
        return chosen.to_owned();
    };
    let directory = chosen.display();
    warn!(%directory, %error, instead = %own.display(), "plugins do not find this agent: the directory is not used");
    own
}

fn is_own(directory: &Path, state_directory: &Path) -> bool {
    fs::read(directory.join(OWNER)).is_ok_and(|owner| owner == state_directory.as_os_str().as_bytes())
}

/// Removes what the agent, which has ended, left in the directory if it has it: mounts, the records
/// of drivers' volumes, dead sockets of plugins' registration, and directories that are empty then.
/// Returns what was done without the drivers, which have ended with their pods.
pub fn clean(chosen: Option<&Path>, state_directory: &Path) -> io::Result<Vec<String>> {
    let Ok(state_directory) = state_directory.canonicalize() else {
        return Ok(Vec::new());
    };
    let state_directory = &*state_directory;
    let mut told = clean_one(&state_directory.join("kubelet"))?;
    let Some(chosen) = chosen.filter(|chosen| is_own(chosen, state_directory)) else {
        return Ok(told);
    };
    told.append(&mut clean_one(chosen)?);
    trees::remove(&chosen.join(OWNER))?;
    // Others' files are there.
    fs::remove_dir(chosen).ok();
    Ok(told)
}

fn clean_one(kubelet: &Path) -> io::Result<Vec<String>> {
    volume::unshare(kubelet)?;
    registration::clean(kubelet)?;
    let told = files::clean(kubelet)?;
    let sockets = fs::read_dir(kubelet.join(files::REGISTRY))
        .into_iter()
        .flatten()
        .flatten();
    for socket in sockets.map(|entry| entry.path()) {
        let refused = UnixStream::connect(&socket).err().map(|error| error.kind());
        if refused == Some(io::ErrorKind::ConnectionRefused) {
            trees::remove(&socket)?;
        }
    }
    for empty in [
        files::STAGED,
        "plugins/kubernetes.io",
        "plugins",
        files::REGISTRY,
        "pods",
        "",
    ] {
        // Others' files are there, or it never was.
        fs::remove_dir(kubelet.join(empty)).ok();
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_another_kubelet_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let (state, kubelet) = (home.path().join("state"), home.path().join("kubelet"));
        fs::create_dir(&state).unwrap();
        let volume = kubelet.join("pods/uid/volumes");
        fs::create_dir_all(&volume).unwrap();
        assert_eq!(claim(Some(&kubelet), &state), state.join("kubelet"));
        clean(Some(&kubelet), &state).unwrap();
        assert!(volume.exists());
        fs::remove_dir_all(&kubelet).unwrap();
        assert_eq!(claim(Some(&kubelet), &state), kubelet);
        fs::create_dir(kubelet.join("pods")).unwrap();
        assert_eq!(claim(Some(&kubelet), &state), kubelet, "the next agent has it, too");
        assert_eq!(claim(Some(&kubelet), home.path()), home.path().join("kubelet"));
        clean(Some(&kubelet), &state).unwrap();
        assert!(!kubelet.exists());
    }
}
