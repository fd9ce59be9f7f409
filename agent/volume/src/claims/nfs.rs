//! NFS volumes, mounted by the machine's `mount` and its helper `mount.nfs`
//! (`pkg/volume/nfs/nfs.go`).

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::Path;

use k8s_openapi::api::core::v1::NFSVolumeSource;

use super::program;

/// Mounts a volume. Takes as long as `mount.nfs` tries, minutes without a server.
pub(super) fn mount(
    target: &Path,
    options: &[String],
    source: &NFSVolumeSource,
    read_only: bool,
) -> Result<(), String> {
    let mut options: BTreeSet<&str> = options.iter().map(String::as_str).collect();
    options.extend(read_only.then_some("ro"));
    program::mount("nfs", &options, place(source).as_ref(), target)
}

fn place(source: &NFSVolumeSource) -> String {
    let NFSVolumeSource { server, path, .. } = source;
    if server.parse::<Ipv6Addr>().is_ok() {
        format!("[{server}]:{path}")
    } else {
        format!("{server}:{path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_mount_is_told_server_path_and_options() {
        let told = |server: &str, options: &[&str]| {
            let source = NFSVolumeSource {
                server: server.to_owned(),
                path: "/export".to_owned(),
                read_only: None,
            };
            let options = options.iter().copied().collect();
            let told = program::arguments("nfs", &options, place(&source).as_ref(), Path::new("/t"));
            told.join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(told("nas", &[]), "-t nfs -- nas:/export /t");
        let expected = "-t nfs -o hard,nfsvers=4.1 -- [fd00::1]:/export /t";
        assert_eq!(told("fd00::1", &["nfsvers=4.1", "hard"]), expected);
        assert_eq!(told("-obind", &[]), "-t nfs -- -obind:/export /t", "it is no option");
    }
}
