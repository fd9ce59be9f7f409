//! `SELinux` labels of files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::walk;
use crate::{Error, io_error};

const NAME: &str = "security.selinux";
/// Maximum length of a label.
const LONGEST: usize = 4096;

/// Labels all files at and below a path. A file system without label support is left as it is.
pub fn label(path: &Path, label: &str) -> Result<(), Error> {
    let open = || -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_PATH.bits())
            .open(path)
    };
    let labelled = open().and_then(|root| walk::all(&root, |file| set(file, label)));
    match labelled {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        labelled => labelled.map_err(|error| io_error("label", path, error)),
    }
}

/// True if the file at a path has this label.
pub fn has_label(path: &Path, label: &str) -> bool {
    is_labelled(path, &as_kept(label))
}

/// Label as stored by the kernel, with a terminating NUL.
fn as_kept(label: &str) -> Vec<u8> {
    label.bytes().chain([0]).collect()
}

fn is_labelled(path: &Path, wanted: &[u8]) -> bool {
    let mut found = vec![0; LONGEST];
    getxattr(path, NAME, &mut found).is_ok_and(|length| found.get(..length) == Some(wanted))
}

fn set(file: &OwnedFd, label: &str) -> io::Result<()> {
    let (path, wanted) = (walk::by_number(file), as_kept(label));
    if is_labelled(&path, &wanted) {
        return Ok(());
    }
    Ok(setxattr(&path, NAME, &wanted, XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::lgetxattr;

    use super::*;

    /// Without `SELinux`, the kernel stores any label that root sets.
    #[test]
    fn attack_1_a_link_in_a_volume_labels_nothing_outside() {
        let home = tempfile::tempdir().expect("a directory");
        let (outside, volume) = (home.path().join("outside"), home.path().join("volume"));
        fs::create_dir_all(volume.join("sub")).expect("made");
        fs::create_dir(&outside).expect("made");
        for file in [&outside.join("file"), &volume.join("sub/file")] {
            fs::write(file, "").expect("written");
        }
        symlink(&outside, volume.join("link")).expect("linked");
        label(&volume, "u:object_r:t:s0:c1,c2").expect("labelled");
        let found = |path: &Path| {
            let mut found = vec![0; LONGEST];
            let length = lgetxattr(path, NAME, &mut found).ok()?;
            Some(String::from_utf8_lossy(&found[..length]).into_owned())
        };
        for inside in ["", "sub", "sub/file", "link"] {
            let label = found(&volume.join(inside));
            assert_eq!(label.as_deref(), Some("u:object_r:t:s0:c1,c2\0"), "{inside}");
        }
        for other in [&outside, &outside.join("file")] {
            assert_eq!(found(other), None);
        }
        assert!(has_label(&volume, "u:object_r:t:s0:c1,c2") && !has_label(&volume, "u:object_r:t:s0:c1"));
        label(&volume.join("sub/file"), "other").expect("labelled");
        assert_eq!(found(&volume.join("sub/file")).as_deref(), Some("other\0"), "a file");
        assert!(label(&volume.join("absent"), "other").is_err());
    }
}
