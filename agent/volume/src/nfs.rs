//! NFS volumes, mounted by the machine's `mount` and its helper `mount.nfs`
//! (`pkg/volume/nfs/nfs.go`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;
use std::process::Command;

use agent_plan::volume::claims::Backing;
use k8s_openapi::api::core::v1::NFSVolumeSource;

use crate::{Error, make_directory};

const PROGRAM: &str = "mount";

/// Mounts a volume at `target`. Takes as long as `mount.nfs` tries, minutes without a server.
pub(crate) fn mount(target: &Path, backing: &Backing, source: &NFSVolumeSource, read_only: bool) -> Result<(), Error> {
    make_directory(target)?;
    let arguments = arguments(target, &backing.options, source, read_only);
    // As always, in case of tools with translations.
    let output = Command::new(PROGRAM).args(&arguments).env("LC_ALL", "C").output();
    let (why, said) = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let code = output.status.code().unwrap_or(-1);
            let said = [output.stdout, output.stderr].concat();
            (
                format!("exit status {code}"),
                String::from_utf8_lossy(&said).into_owned(),
            )
        }
        Err(error) => (format!("exec: {PROGRAM:?}: {error}"), String::new()),
    };
    fs::remove_dir(target).ok();
    let shown = arguments.join(" ".as_ref());
    Err(Error::Claim {
        problem: format!(
            "MountVolume.SetUp failed for volume {:?} : mount failed: {why}\nMounting command: {PROGRAM}\nMounting arguments: \
             {}\nOutput: {said}",
            backing.volume,
            shown.display()
        ),
    })
}

fn arguments(target: &Path, options: &[String], source: &NFSVolumeSource, read_only: bool) -> Vec<OsString> {
    let NFSVolumeSource { server, path, .. } = source;
    let mut options: BTreeSet<&str> = options.iter().map(String::as_str).collect();
    options.extend(read_only.then_some("ro"));
    let mut arguments: Vec<OsString> = vec!["-t".into(), "nfs".into()];
    if !options.is_empty() {
        arguments.push("-o".into());
        arguments.push(options.into_iter().collect::<Vec<_>>().join(",").into());
    }
    let is_v6 = server.parse::<Ipv6Addr>().is_ok();
    let server = if is_v6 { format!("[{server}]") } else { server.clone() };
    // No option, whatever it begins with.
    arguments.push("--".into());
    arguments.push(format!("{server}:{path}").into());
    arguments.push(target.into());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_mount_is_told_server_path_and_options() {
        let told = |server: &str, options: &[&str], read_only| {
            let source = NFSVolumeSource {
                server: server.to_owned(),
                path: "/export".to_owned(),
                read_only: None,
            };
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            let told = arguments(Path::new("/t"), &options, &source, read_only).join(" ".as_ref());
            told.into_string().unwrap()
        };
        assert_eq!(told("nas", &[], false), "-t nfs -- nas:/export /t");
        assert_eq!(
            told("fd00::1", &["nfsvers=4.1", "hard"], true),
            "-t nfs -o hard,nfsvers=4.1,ro -- [fd00::1]:/export /t"
        );
        assert_eq!(
            told("-obind", &[], false),
            "-t nfs -- -obind:/export /t",
            "it is no option"
        );
    }
}
