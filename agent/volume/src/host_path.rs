//! `hostPath` volumes.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use crate::{Error, io_error, set_mode};

/// Checks that the path matches the volume's type, and creates it where the type says so.
pub(crate) fn check(volume: &str, source: &HostPathVolumeSource) -> Result<(), Error> {
    let path = Path::new(&source.path);
    let problem = |problem: String| Error::HostPath {
        volume: volume.to_owned(),
        problem,
    };
    if !path.is_absolute() || path.components().any(|component| component == Component::ParentDir) {
        return Err(problem(format!(
            "{} is not an absolute path without backsteps",
            path.display()
        )));
    }
    let metadata = fs::metadata(path);
    let is = |test: fn(&fs::Metadata) -> bool| metadata.as_ref().is_ok_and(test);
    let shown = path.display();
    match source.type_.as_deref().unwrap_or_default() {
        "" => {
            // A path that does not exist becomes a directory, as in container runtimes.
            if metadata.is_err() {
                make_directories(path)
            } else {
                Ok(())
            }
        }
        "DirectoryOrCreate" if metadata.is_err() => make_directories(path),
        "DirectoryOrCreate" | "Directory" if is(fs::Metadata::is_dir) => Ok(()),
        "DirectoryOrCreate" | "Directory" => Err(problem(format!("{shown} is not a directory"))),
        "FileOrCreate" if metadata.is_err() => {
            fs::File::create_new(path).map_err(|error| io_error("create", path, error))?;
            set_mode(path, 0o644)
        }
        "FileOrCreate" | "File" if is(fs::Metadata::is_file) => Ok(()),
        "FileOrCreate" | "File" => Err(problem(format!("{shown} is not a file"))),
        "Socket" if is(|metadata| metadata.file_type().is_socket()) => Ok(()),
        "Socket" => Err(problem(format!("{shown} is not a socket file"))),
        "CharDevice" if is(|metadata| metadata.file_type().is_char_device()) => Ok(()),
        "CharDevice" => Err(problem(format!("{shown} is not a character device"))),
        "BlockDevice" if is(|metadata| metadata.file_type().is_block_device()) => Ok(()),
        "BlockDevice" => Err(problem(format!("{shown} is not a block device"))),
        other => Err(problem(format!("{other} is an invalid volume type"))),
    }
}

/// Creates missing parent directories with search permission for all, regardless of the umask.
fn make_directories(path: &Path) -> Result<(), Error> {
    let mut ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.reverse();
    for directory in ancestors {
        match fs::create_dir(directory) {
            Ok(()) => set_mode(directory, 0o755)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("create", directory, error)),
        }
    }
    Ok(())
}
