//! Checks of a directory that is to become a state directory.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

/// Maximum length of a state directory's path in bytes: that of `agent/agent.sock` in it has at
/// most 107 (`unix(7)`).
const LONGEST: usize = 90;

/// Rejects a path that the daemons cannot use.
pub(super) fn suits(state_dir: &Path) -> anyhow::Result<()> {
    let text = state_dir
        .to_str()
        .context("the path of a state directory must be UTF-8")?;
    ensure!(
        !text.contains('\n'),
        "the path of a state directory must have no newline: a kubeconfig in it could not be named in $KUBECONFIG"
    );
    ensure!(
        text.len() <= LONGEST,
        "{text} has {} bytes; the path of a state directory has at most {LONGEST}: the kernel takes no longer path of a \
         socket in it",
        text.len()
    );
    Ok(())
}

/// True if a directory may become a cluster's state directory: it will be closed to other users,
/// and later removed with its contents.
pub(super) fn is_free(directory: &Path) -> anyhow::Result<bool> {
    // Left by an interrupted start, or present in a new file system.
    let harmless = ["cluster.json.new", "lost+found"];
    // Settings lost in a power failure.
    if fs::metadata(directory.join("cluster.json")).is_ok_and(|file| file.len() == 0) {
        return Ok(true);
    }
    for entry in fs::read_dir(directory).context("read the state directory")? {
        let name = entry.context("read the state directory")?.file_name();
        if !harmless.iter().any(|known| name == *known) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_somebody_else_is_left_alone() {
        let directory = std::env::temp_dir().join(format!("skiff-ctl-free-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert!(is_free(&directory).unwrap());
        fs::write(directory.join("cluster.json.new"), "{").unwrap();
        assert!(is_free(&directory).unwrap());
        fs::write(directory.join("thesis.tex"), "").unwrap();
        assert!(!is_free(&directory).unwrap());
        fs::write(directory.join("cluster.json"), "").unwrap();
        assert!(is_free(&directory).unwrap());
        fs::remove_dir_all(&directory).unwrap();
    }
}
