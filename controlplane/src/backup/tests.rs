use super::*;

fn cluster(directory: &Path) -> PathBuf {
    let state = directory.join("state");
    fs::create_dir_all(state.join(PKI)).unwrap();
    fs::write(state.join(PKI).join("ca.key"), "key").unwrap();
    fs::write(state.join(SETTINGS), "{}").unwrap();
    drop(store::Sqlite::open(&state.join(DATABASE), &store::Options::default()).unwrap());
    state
}

fn restored(state_dir: &Path, file: &Path) -> anyhow::Result<()> {
    restore(&Restore {
        state_dir: state_dir.to_owned(),
        file: file.to_owned(),
    })
}

#[test]
fn what_was_backed_up_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, file) = (cluster(directory.path()), directory.path().join("b"));
    let options = Backup {
        state_dir: state_dir.clone(),
        file: file.clone(),
    };
    backup(&options).unwrap();
    assert!(backup(&options).unwrap_err().to_string().contains("exists already"));
    let again = directory.path().join("again");
    restored(&again, &file).unwrap();
    assert_eq!(fs::read_to_string(again.join(PKI).join("ca.key")).unwrap(), "key");
    assert_eq!(fs::read_to_string(again.join(SETTINGS)).unwrap(), "{}");
    drop(store::Sqlite::open(&again.join(DATABASE), &store::Options::default()).unwrap());
    assert!(restored(&again, &file).unwrap_err().to_string().contains("already"));
}

#[test]
fn what_root_restores_belongs_to_the_owner_of_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, file) = (cluster(directory.path()), directory.path().join("b"));
    backup(&Backup {
        state_dir,
        file: file.clone(),
    })
    .unwrap();
    let again = directory.path().join("again");
    fs::create_dir(&again).unwrap();
    // Others than root cannot give it away, and restore into directories of their own alone.
    std::os::unix::fs::chown(&again, Some(65_534), Some(65_534)).ok();
    restored(&again, &file).unwrap();
    let owner = |name: &str| {
        fs::metadata(again.join(name))
            .map(|found| (found.uid(), found.gid()))
            .unwrap()
    };
    for name in [SETTINGS, "controlplane", DATABASE, PKI, "controlplane/pki/ca.key"] {
        assert_eq!(owner(name), owner(""), "{name}");
    }
}

/// Clients may have seen later revisions than the backup has: the restored cluster must start
/// beyond them.
#[tokio::test]
async fn a_restored_cluster_is_ahead_of_all_that_was_seen() {
    let open = |path: &Path| store::Store::open(path, store::Options::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, file) = (cluster(directory.path()), directory.path().join("b"));
    let write = |name: &str| store::Write::Create {
        key: store::Key::new("", "configmaps", "default", name).unwrap(),
        value: store::Value::parse(br#"{"metadata":{"resourceVersion":""}}"#.to_vec()).unwrap(),
        attributes: store::Attributes::default(),
        within: None,
    };
    let first = open(&state_dir.join(DATABASE));
    first.commit(write("a")).await.unwrap();
    let options = Backup {
        state_dir: state_dir.clone(),
        file: file.clone(),
    };
    backup(&options).unwrap();
    first.commit(write("b")).await.unwrap();
    let seen = first.revision();
    let again = directory.path().join("again");
    restored(&again, &file).unwrap();
    let second = open(&again.join(DATABASE));
    assert!(second.revision() > seen + 1000, "{}", second.revision());
    let prefix = store::Prefix::resource("", "configmaps");
    assert!(second.watch(&prefix, seen).is_err(), "what was seen is over");
    assert!(second.watch(&prefix, second.revision()).is_ok());
    assert_eq!(second.present(&prefix).len(), 1);
}

#[test]
fn a_second_cluster_on_a_machine_leaves_the_first_ones_things_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, file) = (cluster(directory.path()), directory.path().join("b"));
    let settings = r#"{"listen_port":6443,"agent_port":10250,"pod_cidr":"10.244.0.0/24","node_name":"n",
        "bridge":"skiff0","cgroup_root":"skiff","node_addresses":["10.0.0.1"]}"#;
    fs::write(state_dir.join(SETTINGS), settings).unwrap();
    backup(&Backup {
        state_dir: state_dir.clone(),
        file: file.clone(),
    })
    .unwrap();
    let again = directory.path().join("again");
    restored(&again, &file).unwrap();
    let read = |state_dir: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs::read(state_dir.join(SETTINGS)).unwrap()).unwrap()
    };
    let kept = serde_json::json!({"node_name": "n", "node_addresses": ["10.0.0.1"]});
    assert_eq!(read(&again), kept);
    fs::rename(&state_dir, directory.path().join("lost")).unwrap();
    restored(&state_dir, &file).unwrap();
    assert_eq!(fs::read_to_string(state_dir.join(SETTINGS)).unwrap(), settings);
}

#[test]
fn a_restore_that_was_interrupted_is_done_again() {
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, file) = (cluster(directory.path()), directory.path().join("b"));
    backup(&Backup {
        state_dir,
        file: file.clone(),
    })
    .unwrap();
    let again = directory.path().join("again");
    fs::create_dir_all(again.join("restore.part/controlplane")).unwrap();
    fs::write(again.join(SETTINGS), "{}").unwrap();
    restored(&again, &file).unwrap();
    assert!(again.join(DATABASE).exists() && !again.join("restore.part").exists());
    fs::remove_dir_all(again.join("controlplane")).unwrap();
    assert!(
        restored(&again, &file).is_err(),
        "settings that a restore did not leave"
    );
}

#[test]
fn a_damaged_backup_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (state_dir, file) = (cluster(directory.path()), directory.path().join("b"));
    backup(&Backup {
        state_dir,
        file: file.clone(),
    })
    .unwrap();
    let whole = fs::read(&file).unwrap();
    let again = directory.path().join("again");
    let at = whole.windows(3).rposition(|part| part == b"key").unwrap();
    let mut flipped = whole.clone();
    flipped[at] ^= 1;
    let cases: [&[u8]; 3] = [&whole[..whole.len() / 2], &flipped, b"no backup"];
    for damaged in cases {
        fs::write(&file, damaged).unwrap();
        let error = restored(&again, &file).unwrap_err();
        assert!(!format!("{error:#}").is_empty());
        assert_eq!(fs::read_dir(&again).unwrap().count(), 0, "{error:#}");
    }
}

#[test]
fn names_stay_inside() {
    for name in ["../x", "/etc/passwd", "controlplane/../../x", "other", ""] {
        assert!(inside(name).is_err(), "{name}");
    }
    assert!(inside("controlplane/pki/ca.key").is_ok());
}
