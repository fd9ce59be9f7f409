//! `subPath` mounts; needs root.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_plan::container::environment::{Environment, Sources, Surroundings};
use agent_plan::container::oci::Mount;
use agent_plan::volume::claims::{Backing, Place as AtPath};
use agent_volume::{Error, Volumes};
use k8s_openapi::api::core::v1::{ConfigMap, Container, HostPathVolumeSource, LocalVolumeSource, Pod};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const NONE: Option<&str> = None;

/// Volumes of one pod in a temporary directory.
struct Place {
    directory: tempfile::TempDir,
    volumes: Volumes,
    pod: Pod,
}

impl Place {
    fn new(volume: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let spec = format!(r#"{{"metadata":{{"uid":"u"}},"spec":{{"containers":[],"volumes":[{volume}]}}}}"#);
        Self {
            volumes: Volumes::new(directory.path().to_owned(), true),
            pod: serde_json::from_str(&spec).unwrap(),
            directory,
        }
    }

    fn prepare(&self, data: &str) {
        let object: ConfigMap = serde_json::from_str(&format!(r#"{{"data":{data}}}"#)).unwrap();
        let sources = Sources {
            config_maps: [("cm".to_owned(), object)].into(),
            ..Sources::default()
        };
        self.prepare_from(&sources);
    }

    fn prepare_from(&self, sources: &Sources) {
        self.try_prepare(sources).unwrap();
    }

    fn try_prepare(&self, sources: &Sources) -> Result<(), Error> {
        let turns = self.volumes.turns("u");
        let turn = turns.take();
        self.volumes
            .prepare(&turn, &self.pod, sources, &Surroundings::default())
    }

    fn volume(&self) -> PathBuf {
        self.directory.path().join("u/volumes/v")
    }

    fn mount(&self, how: &str) -> Result<PathBuf, Error> {
        let text = format!(r#"{{"name":"c","volumeMounts":[{{"name":"v","mountPath":"/m",{how}}}]}}"#);
        let container: Container = serde_json::from_str(&text).unwrap();
        let mut variables = Environment::default();
        variables.set("WHERE", "here").expect("short");
        let mounts: Vec<Mount> = self
            .volumes
            .mounts(&self.pod, &container, &variables, &BTreeMap::new())?;
        Ok(mounts.into_iter().next().unwrap().source)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.volumes.tear_down("u").unwrap();
    }
}

/// Shared mount with another file system below it; both are unmounted with the test.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        Self::tmpfs(&machine.data());
        mount(NONE, &machine.data(), NONE, MsFlags::MS_SHARED, NONE).unwrap();
        Self::tmpfs(&machine.disk());
        fs::write(machine.disk().join("f"), "kept").unwrap();
        machine
    }

    fn tmpfs(at: &Path) {
        fs::create_dir_all(at).unwrap();
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn disk(&self) -> PathBuf {
        self.data().join("part/disk")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        umount2(&self.disk(), MntFlags::MNT_DETACH).ok();
        umount2(&self.data(), MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn a_pod_that_goes_takes_no_file_system_of_the_machine_with_it() {
    let machine = Machine::new();
    let data = machine.data();
    let kept = machine.disk().join("f");
    let place = Place::new(&format!(r#"{{"name":"v","hostPath":{{"path":{data:?}}}}}"#));
    for _ in 0..2 {
        let target = place.mount(r#""subPath":"part""#).unwrap();
        assert_eq!(fs::read_to_string(target.join("disk/f")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
    }
    place.volumes.tear_down("u").unwrap();
    assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
    let place = Place::new(r#"{"name":"v","persistentVolumeClaim":{"claimName":"c"}}"#);
    let path = HostPathVolumeSource {
        path: data.display().to_string(),
        type_: None,
    };
    let backing = Backing {
        block: false,
        volume: "pv".to_owned(),
        place: AtPath::HostPath(path),
        exclusive: false,
        group: Some(1234),
        options: Vec::new(),
    };
    place.prepare_from(&Sources {
        claims: [("v".to_owned(), backing)].into(),
        ..Sources::default()
    });
    assert_eq!(
        fs::read_to_string(place.directory.path().join("u/claims/v/part/disk/f")).unwrap(),
        "kept"
    );
    assert_eq!(place.volumes.groups("u"), [1234]);
    place.volumes.tear_down("u").unwrap();
    assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
}

/// A claim with a `local` volume.
fn local(path: &Path, options: &[&str]) -> Sources {
    let backing = Backing {
        block: false,
        volume: "pv".to_owned(),
        place: AtPath::Local(LocalVolumeSource {
            path: path.display().to_string(),
            fs_type: None,
        }),
        exclusive: false,
        group: None,
        options: options.iter().map(|&option| option.to_owned()).collect(),
    };
    Sources {
        claims: [("v".to_owned(), backing)].into(),
        ..Sources::default()
    }
}

#[test]
fn a_local_volume_is_no_file_of_the_machine() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("f");
    fs::write(&file, "").unwrap();
    let mode = fs::metadata(&file).unwrap().mode();
    let mut place = Place::new(r#"{"name":"v","persistentVolumeClaim":{"claimName":"c"}}"#);
    let spec = place.pod.spec.as_mut().unwrap();
    spec.security_context.get_or_insert_default().fs_group = Some(4321);
    let refused = place.try_prepare(&local(&file, &[])).unwrap_err();
    assert!(
        refused
            .to_string()
            .ends_with("only directory and block device are supported"),
        "{refused}"
    );
    let found = fs::metadata(&file).unwrap();
    assert_eq!((found.mode(), found.gid()), (mode, 0));
}

/// A blank disk of the kernel's loop driver, which goes with it.
struct Disk {
    _file: tempfile::NamedTempFile,
    device: PathBuf,
}

impl Disk {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file.path())
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        Self {
            _file: file,
            device: String::from_utf8(made.stdout).unwrap().trim().into(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let gone = Command::new("losetup").arg("--detach").arg(&self.device).status();
        assert!(gone.unwrap().success());
    }
}

#[test]
fn a_blank_disk_is_formatted_once_and_mounted_for_each_pod() {
    let disk = Disk::new();
    let place = || {
        let mut place = Place::new(r#"{"name":"v","persistentVolumeClaim":{"claimName":"c"}}"#);
        let spec = place.pod.spec.as_mut().unwrap();
        spec.security_context.get_or_insert_default().fs_group = Some(4321);
        place
    };
    let refused = place().try_prepare(&local(&disk.device, &["ro"])).unwrap_err();
    assert!(
        refused.to_string().contains("cannot mount unformatted disk"),
        "{refused}"
    );
    let (first, second) = (place(), place());
    for (place, kept) in [(&first, None), (&second, Some("kept"))] {
        place.prepare_from(&local(&disk.device, &[]));
        let target = place.directory.path().join("u/claims/v");
        assert_eq!(fs::metadata(&target).unwrap().gid(), 4321);
        assert_eq!(fs::read_to_string(target.join("f")).ok().as_deref(), kept);
        fs::write(target.join("f"), "kept").unwrap();
    }
    for place in [&first, &second] {
        place.volumes.tear_down("u").unwrap();
    }
}

#[test]
fn a_local_volume_is_mounted_with_its_options() {
    let data = tempfile::tempdir().unwrap();
    let place = Place::new(r#"{"name":"v","persistentVolumeClaim":{"claimName":"c"}}"#);
    let options = |options: &[&str]| local(data.path(), options);
    let target = place.directory.path().join("u/claims/v");
    place.prepare_from(&options(&[]));
    fs::write(target.join("f"), "").unwrap();
    // As if the agent had been killed before it set the options.
    let begun = place.directory.path().join("u/restricting");
    fs::create_dir_all(&begun).unwrap();
    fs::write(begun.join("v"), "").unwrap();
    assert!(!place.volumes.is_mounted("u", "v").unwrap());
    place.prepare_from(&options(&["ro", "noexec", "size=1"]));
    assert!(place.volumes.is_mounted("u", "v").unwrap());
    let refused = fs::write(target.join("f"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fs::write(data.path().join("f"), "x").unwrap();
    place.volumes.tear_down("u").unwrap();
}

#[test]
fn directories_that_are_made_have_the_mode_of_their_volume() {
    let place = Place::new(r#"{"name":"v","emptyDir":{}}"#);
    place.prepare("{}");
    let target = place.mount(r#""subPath":"one/two""#).unwrap();
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o777);
    let one = fs::metadata(place.volume().join("one")).unwrap();
    assert_eq!(one.permissions().mode() & 0o7777, 0o777);
    let target = place.mount(r#""subPathExpr":"$(WHERE)/x""#).unwrap();
    fs::write(target.join("f"), "").unwrap();
    assert!(place.volume().join("here/x/f").exists());
    let unknown = place.mount(r#""subPathExpr":"$(NOBODY)/x""#).unwrap_err();
    assert_eq!(unknown.to_string(), "missing value for NOBODY");
    for (path, why) in [
        ("/$(WHERE)", "error SubPath `/here` must not be an absolute path"),
        (
            "$(WHERE)/..",
            "unable to provision SubPath `here/..`: must not contain '..'",
        ),
    ] {
        let refused = place.mount(&format!(r#""subPathExpr":"{path}""#)).unwrap_err();
        assert_eq!(refused.to_string(), why);
    }
    symlink("/etc", place.volume().join("link")).unwrap();
    let refused = place.mount(r#""subPath":"link/passwd""#).unwrap_err();
    let why = "failed to prepare subPath for volumeMount \"v\" of container \"c\"";
    assert_eq!(refused.to_string(), why);
}

#[test]
fn each_start_of_a_container_mounts_what_the_path_means_then() {
    let place = Place::new(r#"{"name":"v","configMap":{"name":"cm"}}"#);
    place.prepare(r#"{"a":"one"}"#);
    let target = place.mount(r#""subPath":"a""#).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "one");
    place.prepare(r#"{"a":"two"}"#);
    assert_eq!(fs::read_to_string(&target).unwrap(), "one", "what runs keeps its file");
    let target = place.mount(r#""subPath":"a""#).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "two");
}

#[test]
fn attack_02_a_path_that_changes_while_it_is_mounted_never_leaves_its_volume() {
    let place = Place::new(r#"{"name":"v","emptyDir":{}}"#);
    place.prepare("{}");
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "").unwrap();
    let (inner, link) = (place.volume().join("swap"), place.volume().join("other"));
    fs::create_dir(&inner).unwrap();
    symlink(outside.path(), &link).unwrap();
    let over = AtomicBool::new(false);
    let mut mounted = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, &inner, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        for attempt in 0..3000 {
            for path in ["swap".to_owned(), format!("swap/{attempt}")] {
                if let Ok(target) = place.mount(&format!(r#""subPath":"{path}""#)) {
                    mounted += 1;
                    if target.join("secret").exists() {
                        over.store(true, Ordering::Relaxed);
                        panic!("attempt {attempt} mounted what is outside");
                    }
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(mounted > 0, "now and then the directory was there");
    assert_eq!(
        fs::read_dir(outside.path()).unwrap().count(),
        1,
        "nothing was made outside"
    );
}
