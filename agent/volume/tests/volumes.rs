//! Volumes on a real file system.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use agent_plan::container::environment::{Environment, Sources, Surroundings};
use agent_plan::volume::tokens::ProjectedToken;
use agent_volume::{Error, Turn, Volumes};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod};

fn pod(spec: &str) -> Pod {
    serde_json::from_str(&format!(r#"{{"metadata":{{"name":"p","uid":"uid-1"}},"spec":{spec}}}"#)).unwrap()
}

fn prepare(volumes: &Volumes, pod: &Pod, sources: &Sources) -> Result<(), Error> {
    let turn = volumes.turns("uid-1").take();
    volumes.prepare(&turn, pod, sources, &Surroundings::default())
}

fn sources(data: &str) -> Sources {
    let object: ConfigMap = serde_json::from_str(&format!(r#"{{"data":{data}}}"#)).unwrap();
    Sources {
        config_maps: [("cm".to_owned(), object)].into(),
        ..Sources::default()
    }
}

#[test]
fn directories_of_the_node_that_are_made_may_be_entered_by_everybody() {
    let directory = tempfile::tempdir().unwrap();
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    for (name, kind) in [("plain", ""), ("asked", "DirectoryOrCreate")] {
        let path = directory.path().join(name).join("inner");
        let pod = format!(
            r#"{{"metadata":{{"uid":"u"}},"spec":{{"containers":[],"volumes":[{{"name":"v","hostPath":{{"path":{path:?},"type":"{kind}"}}}}]}}}}"#
        );
        let volumes = Volumes::new(directory.path().join("pods"), false);
        let turns = volumes.turns("u");
        volumes
            .prepare(
                &turns.take(),
                &serde_json::from_str(&pod).unwrap(),
                &Sources::default(),
                &Surroundings::default(),
            )
            .unwrap();
        for made in [&*path, path.parent().unwrap()] {
            let mode = fs::metadata(made).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755, "{}", made.display());
        }
    }
    nix::sys::stat::umask(before);
}

#[test]
fn a_config_map_changes_all_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let pod = pod(r#"{"containers":[],"volumes":[{"name":"v","configMap":{"name":"cm","defaultMode":256}}]}"#);
    prepare(&volumes, &pod, &sources(r#"{"a":"1","b":"2"}"#)).unwrap();
    let volume = directory.path().join("uid-1/volumes/v");
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
    assert_eq!(
        fs::metadata(volume.join("a")).unwrap().permissions().mode() & 0o777,
        0o400
    );
    let first = fs::read_link(volume.join("..data")).unwrap();
    prepare(&volumes, &pod, &sources(r#"{"a":"1","b":"2"}"#)).unwrap();
    assert_eq!(
        fs::read_link(volume.join("..data")).unwrap(),
        first,
        "nothing changed, nothing is written"
    );
    // State of an agent that was killed before it created the links.
    fs::remove_file(volume.join("a")).unwrap();
    symlink("..data/gone", volume.join("gone")).unwrap();
    prepare(&volumes, &pod, &sources(r#"{"a":"1","b":"2"}"#)).unwrap();
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1");
    assert!(fs::symlink_metadata(volume.join("gone")).is_err());
    prepare(&volumes, &pod, &sources(r#"{"a":"3","c":"4"}"#)).unwrap();
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
    assert!(!volume.join("b").exists() && volume.join("c").exists());
    assert_eq!(
        fs::read_dir(&volume).unwrap().count(),
        4,
        "..data, its directory, a and c"
    );
    volumes.tear_down("uid-1").unwrap();
    volumes.tear_down("uid-1").unwrap();
    assert!(volumes.pods().unwrap().is_empty());
}

#[test]
fn what_is_missing_or_leads_outside_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let attempt = |volume: &str| {
        let pod = pod(&format!(r#"{{"containers":[],"volumes":[{volume}]}}"#));
        prepare(&volumes, &pod, &sources(r#"{"a":"1"}"#)).map_err(|error| error.to_string())
    };
    let missing = attempt(r#"{"name":"v","configMap":{"name":"other"}}"#).unwrap_err();
    assert_eq!(
        missing,
        "MountVolume.SetUp failed for volume \"v\" : configmap \"other\" not found"
    );
    attempt(r#"{"name":"v","configMap":{"name":"other","optional":true}}"#).unwrap();
    let at = |path: &str| {
        attempt(&format!(
            r#"{{"name":"w","configMap":{{"name":"cm","items":[{{"key":"a","path":"{path}"}}]}}}}"#
        ))
    };
    for path in ["../x", "/x", "a/../../x", "..x", "./..x", "."] {
        at(path).unwrap_err();
    }
    for (path, shown) in [("./x", "x"), ("a//b/", "a/b")] {
        at(path).unwrap();
        let file = directory.path().join("uid-1/volumes/w").join(shown);
        assert_eq!(fs::read_to_string(file).unwrap(), "1", "{path}");
    }
    let wrong = attempt(r#"{"name":"h","hostPath":{"path":"/etc/passwd","type":"Directory"}}"#).unwrap_err();
    assert!(
        wrong.ends_with("hostPath type check failed: /etc/passwd is not a directory"),
        "{wrong}"
    );
    attempt(r#"{"name":"../../x","emptyDir":{}}"#).unwrap_err();
}

/// One megabyte shown a thousand times would take a gigabyte of memory and disk.
#[test]
fn files_of_one_key_are_counted_each() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let data = sources(&format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 20)));
    let with = |number: usize| {
        let items: Vec<String> = (0..number)
            .map(|at| format!(r#"{{"key":"a","path":"p{at}"}}"#))
            .collect();
        let volume = format!(
            r#"{{"name":"v","configMap":{{"name":"cm","items":[{}]}}}}"#,
            items.join(",")
        );
        prepare(
            &volumes,
            &pod(&format!(r#"{{"containers":[],"volumes":[{volume}]}}"#)),
            &data,
        )
    };
    let refused = with(1_500).unwrap_err().to_string();
    assert_eq!(
        refused,
        "MountVolume.SetUp failed for volume \"v\" : the files of the pod's volumes exceed 64 MiB"
    );
    with(3).unwrap();
    volumes.tear_down("uid-1").unwrap();
}

#[test]
fn attack_01_a_sub_path_cannot_leave_its_volume() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let pod = pod(r#"{"containers":[],"volumes":[{"name":"v","emptyDir":{}}]}"#);
    prepare(&volumes, &pod, &Sources::default()).unwrap();
    let volume = directory.path().join("uid-1/volumes/v");
    symlink("/", volume.join("root")).unwrap();
    symlink("../../..", volume.join("up")).unwrap();
    for path in ["root", "root/etc", "up", "../v", "/etc"] {
        let container: Container = serde_json::from_str(&format!(
            r#"{{"name":"c","volumeMounts":[{{"name":"v","mountPath":"/m","subPath":"{path}"}}]}}"#
        ))
        .unwrap();
        volumes
            .mounts(&pod, &container, &Environment::default(), &BTreeMap::new())
            .unwrap_err();
    }
    volumes.tear_down("uid-1").unwrap();
}

#[test]
fn secrets_lie_in_memory_and_tokens_are_for_their_pod_alone() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let projected =
        r#"{"sources":[{"serviceAccountToken":{"path":"token","audience":"vault","expirationSeconds":600}}]}"#;
    let with = |context: &str| {
        pod(&format!(
            r#"{{"securityContext":{context},"containers":[{{"name":"c"}}],"volumes":[{{"name":"t","projected":{projected}}},
            {{"name":"s","secret":{{"secretName":"key"}}}},{{"name":"e","emptyDir":{{}}}},
            {{"name":"p","projected":{{"sources":[{{"downwardAPI":{{"items":[{{"path":"in/n","fieldRef":{{"fieldPath":"metadata.name"}}}}]}}}}]}}}},
            {{"name":"d","downwardAPI":{{"items":[{{"path":"n","fieldRef":{{"fieldPath":"metadata.name"}}}}]}}}}]}}"#
        ))
    };
    let sources = |token: &str| Sources {
        secrets: [(
            "key".to_owned(),
            serde_json::from_str(r#"{"data":{"k":"dg=="}}"#).unwrap(),
        )]
        .into(),
        tokens: [(
            ProjectedToken {
                audience: "vault".to_owned(),
                seconds: 600,
            },
            token.to_owned(),
        )]
        .into(),
        ..Sources::default()
    };
    for (context, mode, owner, group) in [
        ("{}", 0o644, 0, 0),
        (r#"{"runAsUser":1000}"#, 0o600, 1000, 0),
        (r#"{"fsGroup":2000}"#, 0o640, 0, 2000),
        (r#"{"runAsUser":1000,"fsGroup":2000}"#, 0o640, 1000, 2000),
    ] {
        let pod = with(context);
        prepare(&volumes, &pod, &sources("first")).unwrap();
        prepare(&volumes, &pod, &sources("second")).unwrap();
        let memory = directory.path().join("uid-1/memory");
        let token = memory.join("t/token");
        assert_eq!(fs::read_to_string(&token).unwrap(), "second");
        let (found, link) = (fs::metadata(&token).unwrap(), fs::symlink_metadata(&token).unwrap());
        assert_eq!(
            (found.mode() & 0o777, found.uid(), found.gid(), link.uid()),
            (mode, owner, group, owner),
            "{context}"
        );
        assert_eq!(fs::read_to_string(memory.join("s/k")).unwrap(), "v");
        assert!(memory.join("d/n").exists());
        let inner = fs::metadata(memory.join("p/in")).unwrap();
        let bits = if group == 0 { 0o755 } else { 0o2755 };
        assert_eq!((inner.mode() & 0o7777, inner.gid()), (bits, group), "{context}");
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts: Vec<&str> = table.lines().filter(|line| line.contains("uid-1/memory")).collect();
        assert!(
            mounts.len() == 1 && mounts[0].contains(" tmpfs "),
            "one for the pod: {mounts:?}"
        );
        assert!(!mounts[0].contains("noexec"), "programs run there: {mounts:?}");
        assert!(!directory.path().join("uid-1/volumes/s").exists());
        volumes.tear_down("uid-1").unwrap();
        assert!(volumes.pods().unwrap().is_empty());
    }
    let missing = prepare(&volumes, &with("{}"), &Sources::default());
    let message = missing.unwrap_err().to_string();
    assert_eq!(
        message,
        "MountVolume.SetUp failed for volume \"t\" : no token of the pod's service account; MountVolume.SetUp failed for volume \
         \"s\" : secret \"key\" not found"
    );
    volumes.tear_down("uid-1").unwrap();
}

#[test]
fn an_empty_dir_that_a_crash_left_half_made_is_made_whole() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let pod = pod(r#"{"containers":[],"securityContext":{"fsGroup":4242},
            "volumes":[{"name":"disk","emptyDir":{}},{"name":"memory","emptyDir":{"medium":"Memory","sizeLimit":"1Mi"}}]}"#);
    let below = directory.path().join("uid-1/volumes");
    for half in [".disk", "memory"] {
        fs::create_dir_all(below.join(half)).unwrap();
        fs::set_permissions(below.join(half), fs::Permissions::from_mode(0o700)).unwrap();
    }
    for _ in 0..2 {
        prepare(&volumes, &pod, &Sources::default()).unwrap();
        for (name, mode) in [("disk", 0o2777), ("memory", 0o3777)] {
            let made = fs::metadata(below.join(name)).unwrap();
            assert_eq!((made.permissions().mode() & 0o7777, made.gid()), (mode, 4242), "{name}");
        }
        fs::write(below.join("disk/kept"), "").unwrap();
    }
    let parent = fs::metadata(&below).unwrap().dev();
    assert_ne!(fs::metadata(below.join("memory")).unwrap().dev(), parent, "in memory");
    assert!(!below.join(".disk").exists() && below.join("disk/kept").exists());
    volumes.tear_down("uid-1").unwrap();
}

#[test]
fn what_lies_in_memory_stays_where_a_link_leads_to_the_pods() {
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    let volumes = Volumes::new(link, true);
    let pod = pod(r#"{"containers":[],"volumes":[{"name":"m","emptyDir":{"medium":"Memory"}}]}"#);
    prepare(&volumes, &pod, &Sources::default()).unwrap();
    let file = real.join("uid-1/volumes/m/file");
    fs::write(&file, "").unwrap();
    // As at each start of a container.
    prepare(&volumes, &pod, &Sources::default()).unwrap();
    assert!(file.exists());
    volumes.tear_down("uid-1").unwrap();
    assert!(!real.join("uid-1").exists());
}

#[test]
fn what_lies_in_memory_takes_no_more_than_the_pod_and_the_node_have() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let surroundings = Surroundings {
        allocatable: BTreeMap::from([("memory".to_owned(), (64 << 20) * 1000)]),
        ..Surroundings::default()
    };
    for (resources, limit, expected) in [
        ("{}", "", 64),
        (r#"{"limits":{"memory":"16Mi"}}"#, "", 16),
        (r#"{"limits":{"memory":"16Mi"}}"#, r#","sizeLimit":"8Mi""#, 8),
        (r#"{"limits":{"memory":"16Mi"}}"#, r#","sizeLimit":"32Mi""#, 16),
        (r#"{"limits":{"memory":"1Gi"}}"#, r#","sizeLimit":"0""#, 64),
    ] {
        let pod = pod(&format!(
            r#"{{"containers":[{{"name":"a","resources":{resources}}}],
                "volumes":[{{"name":"m","emptyDir":{{"medium":"Memory"{limit}}}}}]}}"#
        ));
        let turn = volumes.turns("uid-1").take();
        volumes
            .prepare(&turn, &pod, &Sources::default(), &surroundings)
            .unwrap();
        let volume = directory.path().join("uid-1/volumes/m");
        // Default mode of a tmpfs, as with the kubelet.
        assert_eq!(fs::metadata(&volume).unwrap().permissions().mode() & 0o7777, 0o1777);
        let made = nix::sys::statvfs::statvfs(&volume).unwrap();
        let size = made.blocks() * made.fragment_size();
        assert_eq!(size >> 20, expected, "{resources} {limit}");
        volumes.tear_down("uid-1").unwrap();
        drop(turn);
    }
}

#[test]
fn what_was_read_earlier_never_replaces_what_was_read_later() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), false);
    let pod = pod(r#"{"containers":[],"volumes":[{"name":"v","configMap":{"name":"cm"}}]}"#);
    let file = directory.path().join("uid-1/volumes/v/a");
    let turns = volumes.turns("uid-1");
    let make = |turn: &Turn, data: &str| {
        let sources = sources(&format!(r#"{{"a":"{data}"}}"#));
        volumes.prepare(turn, &pod, &sources, &Surroundings::default()).unwrap();
    };
    let (slow, quick) = (turns.take(), volumes.turns("uid-1").take());
    make(&quick, "new");
    make(&slow, "old");
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");

    // Concurrently with a new setup, as after the loss of a sandbox: neither sees the other's
    // partial files.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (turns, make) = (&turns, &make);
            scope.spawn(move || (0..100).for_each(|round| make(&turns.take(), &format!("{thread}-{round}"))));
        }
    });
    assert_eq!(
        fs::read_dir(file.parent().unwrap()).unwrap().count(),
        3,
        "a, ..data and its directory"
    );

    // A refresh that runs while the volumes are removed creates nothing afterwards.
    let late = turns.take();
    volumes.tear_down("uid-1").unwrap();
    make(&late, "late");
    make(&turns.take(), "later");
    assert!(volumes.pods().unwrap().is_empty());
}

#[test]
fn volumes_of_huge_pages_are_of_those_that_the_pod_asks_for() {
    let directory = tempfile::tempdir().unwrap();
    let volumes = Volumes::new(directory.path().to_owned(), true);
    let spec = |resources: &str| {
        pod(&format!(
            r#"{{"containers":[{{"name":"a","resources":{{"limits":{resources}}}}}],"securityContext":{{"fsGroup":77}},
            "volumes":[{{"name":"huge","emptyDir":{{"medium":"HugePages-2Mi"}}}}]}}"#
        ))
    };
    let refused = prepare(&volumes, &spec(r#"{"memory":"1Gi"}"#), &Sources::default()).unwrap_err();
    let why = refused.to_string();
    assert!(
        why.starts_with("MountVolume.SetUp failed for volume \"huge\" : ")
            && why.ends_with(": hugePages storage requested, but there is no resource request for huge pages"),
        "{why}"
    );
    let asking = spec(r#"{"memory":"1Gi","hugepages-2Mi":"4Mi"}"#);
    for _ in 0..2 {
        prepare(&volumes, &asking, &Sources::default()).unwrap();
    }
    let volume = directory.path().join("uid-1/volumes/huge");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted: Vec<&str> = table
        .lines()
        .filter(|line| line.contains(volume.to_str().unwrap()))
        .collect();
    assert!(
        matches!(mounted.as_slice(), [one] if one.contains(" hugetlbfs ") && one.contains("pagesize=2M")),
        "{mounted:?}"
    );
    let found = fs::metadata(&volume).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o7777), (77, 0o2775));
    volumes.tear_down("uid-1").unwrap();
    assert!(!volume.exists());
}

#[test]
fn attack_29_a_git_repository_is_no_volume() {
    let directory = tempfile::tempdir().unwrap();
    let (root, touched) = (directory.path().join("pods"), directory.path().join("touched"));
    let volumes = Volumes::new(root.clone(), true);
    let repository = format!("--upload-pack=touch {}", touched.display());
    let pod = pod(&format!(
        r#"{{"containers":[],"volumes":[{{"name":"v","gitRepo":{{"repository":{repository:?},"directory":"../../x"}}}}]}}"#
    ));
    let refused = prepare(&volumes, &pod, &Sources::default()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "MountVolume.SetUp failed for volume \"v\" : git-repo volume plugin has been disabled; if necessary, it may be \
         re-enabled by enabling the feature-gate `GitRepoVolumeDriver`"
    );
    assert!(!touched.exists() && !root.join("uid-1/volumes/v").exists());
}
