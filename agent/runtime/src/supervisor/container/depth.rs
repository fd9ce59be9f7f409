//! Decides whether a container can be created while its volumes have no contents.

use std::path::{Component, Path};

use oci_spec::runtime::Spec;

use crate::supervisor::rootfs::delayed;

/// True if the creation depends on the contents of its volumes: a mount point, the program or the
/// working directory is in one.
pub(super) fn is_looked_into(spec: &Spec) -> bool {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    let inside = |path: &Path, point: &Path| path != point && path.starts_with(point);
    let process = spec.process().as_ref();
    let directory = process.map(|process| process.cwd().as_path());
    let argv = process.and_then(|process| process.args().as_deref());
    let program = argv.and_then(<[String]>::first).map_or("", String::as_str);
    let environment = process.and_then(|process| process.env().as_deref()).unwrap_or_default();
    let searched = crate::supervisor::process::program::places(program, environment);
    mounts.iter().filter(|mount| delayed::is_bound(mount)).any(|mount| {
        let point = mount.destination();
        mounts.iter().any(|other| inside(other.destination(), point))
            || directory.is_some_and(|directory| directory.starts_with(point))
            || searched.iter().any(|place| is_within(place, directory, point))
    })
}

/// True if the program's path lies in a volume. Links of the image are not followed: such a
/// container is created a second time.
fn is_within(program: &Path, directory: Option<&Path>, point: &Path) -> bool {
    let program = directory.map_or_else(|| program.to_owned(), |directory| directory.join(program));
    program.components().any(|part| part == Component::ParentDir) || program.starts_with(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_into(own: &str) -> bool {
        let text = format!(
            r#"{{"ociVersion":"1.0.2","mounts":[
                {{"destination":"/v","type":"bind","source":"/x","options":["rbind"]}},
                {{"destination":"/proc","type":"proc","source":"proc"}}{own}}}"#
        );
        is_looked_into(&serde_json::from_str(&text).unwrap())
    }

    fn run(program: &str, directory: &str, environment: &str) -> String {
        format!(
            r#"],"process":{{"user":{{"uid":0,"gid":0}},"cwd":"{directory}","args":["{program}"],"env":[{environment}]}}"#
        )
    }

    #[test]
    fn what_is_mounted_found_or_begun_in_a_volume_needs_its_contents() {
        for own in [
            "]".to_owned(),
            r#",{"destination":"/vault","type":"bind","source":"/y"}]"#.to_owned(),
            r#",{"destination":"/proc/x","type":"bind","source":"/y"}]"#.to_owned(),
            run("/bin/sh", "/", ""),
            run("sh", "/srv", r#""PATH=/bin:/usr/bin""#),
            // A program given with a path is not searched for.
            run("/bin/sh", "/", r#""PATH=/v/bin""#),
        ] {
            assert!(!looked_into(&own), "{own}");
        }
        for own in [
            r#",{"destination":"/v/w","type":"bind","source":"/y"}]"#.to_owned(),
            r#",{"destination":"/v/w","type":"tmpfs","source":"tmpfs"}]"#.to_owned(),
            run("/v/run.sh", "/", ""),
            run("./run.sh", "/v", ""),
            run("v/run.sh", "/", ""),
            run("/srv/../v/run.sh", "/", ""),
            run("sh", "/", r#""PATH=/bin:/v/bin""#),
            run("/bin/sh", "/v/deeper", ""),
        ] {
            assert!(looked_into(&own), "{own}");
        }
    }
}
