//! State directories, starts that fail, and commands without a cluster.

use anyhow::Context as _;

use tests::machine::{Machine, Namespace, Setup, eventually};
use tests::{images, process};

use super::clusters::answer;
use super::{apply, manifest};

/// Runs `skiff` for a cluster in a directory.
fn skiff(namespace: &Namespace, state: &std::path::Path, words: &[&str]) -> anyhow::Result<String> {
    let mut command = namespace.command(process::programs()?.join("skiff"));
    command.args(words).arg("--state-dir").arg(state);
    command.env("SKIFF_EVICTION_HARD", "");
    process::run(&mut command)
}

#[test]
fn a_state_directory_may_have_spaces_and_backslashes() -> anyhow::Result<()> {
    tests::logging();
    let setup = Setup {
        folder: Some(r"a b\c:d,e 'f'"),
        ..Setup::default()
    };
    let machine = Machine::start_with(Namespace::new("spaces")?, setup)?;
    let image = images::nginx(&machine)?;
    apply(&machine, &manifest(&image, 1, "spaces"))?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    eventually("the pod answers", || answer(&machine))?;
    machine.skiff(["delete", "deployment/web"])?;
    eventually("the pod is gone", || {
        let pods = machine.kubectl(["get", "pods", "-o", "name"]);
        let pods = pods.map_err(|error| error.to_string())?;
        pods.is_empty().then_some(()).ok_or(pods)
    })?;
    apply(&machine, &manifest(&image, 1, "again"))?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    let home = machine.state().parent().context("a folder")?.display().to_string();
    machine.finish()?;
    // The kernel escapes what is in the path.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    assert!(!mounts.contains(&home), "{mounts}");
    Ok(())
}

#[test]
fn a_state_directory_that_cannot_work_is_refused_before_anything_is_made() -> anyhow::Result<()> {
    let (namespace, home) = (Namespace::new("refused")?, tempfile::tempdir()?);
    let long = "x".repeat(91 - home.path().as_os_str().len() - 1);
    for (name, why) in [
        (
            long.as_str(),
            "has 91 bytes; the path of a state directory has at most 90",
        ),
        ("a\nb", "must have no newline"),
    ] {
        let state = home.path().join(name);
        for words in [&["up"][..], &["restore", "backup.tar"]] {
            let said = skiff(&namespace, &state, words).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
            assert!(!state.exists(), "{said}");
        }
    }
    Ok(())
}

#[test]
fn a_first_start_that_failed_leads_on_and_can_be_purged() -> anyhow::Result<()> {
    tests::logging();
    let (namespace, home) = (Namespace::new("wrong")?, tempfile::tempdir()?);
    let state = home.path().join("state");
    let wrong = ["up", "--runtime", "containerd", "--containerd-address", "/nope.sock"];
    let said = skiff(&namespace, &state, &wrong).unwrap_err().to_string();
    assert!(
        said.contains("/nope.sock") && said.contains("these settings are not kept"),
        "{said}"
    );
    let said = skiff(&namespace, &state, &["up"])?;
    assert!(said.contains("The cluster is up"), "{said}");
    // A working configuration is not replaced by settings that do not work.
    skiff(&namespace, &state, &["down"])?;
    let said = skiff(&namespace, &state, &wrong).unwrap_err().to_string();
    assert!(said.contains("these settings are not kept"), "{said}");
    skiff(&namespace, &state, &["up"])?;
    skiff(&namespace, &state, &["down"])?;
    // An engine that has gone since.
    let file = state.join("cluster.json");
    let mut settings: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    settings["backends"]["runtime"] = "containerd".into();
    settings["backends"]["containerd_address"] = "/nope.sock".into();
    std::fs::write(&file, settings.to_string())?;
    let said = skiff(&namespace, &state, &["down"])?;
    assert!(said.contains("left behind: ") && said.contains("/nope.sock"), "{said}");
    let said = skiff(&namespace, &state, &["down", "--purge"])?;
    assert!(said.contains("left behind: ") && !state.exists(), "{said}");
    Ok(())
}

#[test]
fn a_state_directory_that_is_a_file_system_of_its_own_is_emptied() -> anyhow::Result<()> {
    tests::logging();
    let (namespace, home) = (Namespace::new("mounted")?, tempfile::tempdir()?);
    let state = home.path().join("state");
    std::fs::create_dir(&state)?;
    let (tmpfs, size) = (Some("tmpfs"), Some("size=256m"));
    nix::mount::mount(tmpfs, &state, tmpfs, nix::mount::MsFlags::empty(), size)?;
    let up = skiff(&namespace, &state, &["up"]);
    let down = skiff(&namespace, &state, &["down", "--purge"]);
    let left = std::fs::read_dir(&state)?.count();
    nix::mount::umount(&state)?;
    up.and(down)?;
    assert_eq!(left, 0, "files of the cluster");
    Ok(())
}

#[test]
fn settings_of_a_first_start_that_was_interrupted_are_not_kept_for_ever() -> anyhow::Result<()> {
    tests::logging();
    let (namespace, home) = (Namespace::new("cut")?, tempfile::tempdir()?);
    let interrupted = |round: u32| -> anyhow::Result<Option<std::path::PathBuf>> {
        let state = home.path().join(format!("state-{round}"));
        let mut command = namespace.command(process::programs()?.join("skiff"));
        command.args(["up", "--runtime", "containerd", "--containerd-address", "/nope.sock"]);
        let mut up = command.arg("--state-dir").arg(&state).spawn()?;
        let file = state.join("cluster.json");
        eventually("the settings are written", || {
            file.exists().then_some(()).ok_or_else(|| "not yet".to_owned())
        })?;
        up.kill()?;
        up.wait()?;
        // Where this test was held up, they have been taken back.
        let is_unproven = std::fs::read_to_string(file)?.contains("before");
        Ok(is_unproven.then_some(state))
    };
    let state = (0..10).find_map(|round| interrupted(round).transpose());
    let state = state.context("it was never interrupted in time")??;
    let said = skiff(&namespace, &state, &["up"]).unwrap_err().to_string();
    assert!(said.contains("these settings are not kept"), "{said}");
    skiff(&namespace, &state, &["up"])?;
    // They are proven now: an engine that is away for a while is no reason to forget it.
    let kept = std::fs::read_to_string(state.join("cluster.json"))?;
    assert!(!kept.contains("before"), "{kept}");
    skiff(&namespace, &state, &["down", "--purge"])?;
    Ok(())
}

#[test]
fn without_a_cluster_a_command_says_so_and_how_to_start_one() -> anyhow::Result<()> {
    tests::logging();
    let (namespace, home) = (Namespace::new("none")?, tempfile::tempdir()?);
    let state = home.path().join("a cluster");
    let started = format!("`skiff up --state-dir '{}'` starts one", state.display());
    let socket = state.join("agent/agent.sock");
    let no_agent = || {
        let said = skiff(&namespace, &state, &["image", "list"]).unwrap_err().to_string();
        let wanted = format!("no agent answers at {} (", socket.display());
        assert!(said.contains(&wanted) && said.contains(&started), "{said}");
        assert!(!said.contains("os error"), "{said}");
    };
    no_agent();
    for words in [&["get", "pods"][..], &["why", "pod/x"], &["logs", "x"]] {
        let said = skiff(&namespace, &state, words).unwrap_err().to_string();
        assert!(
            said.contains("no cluster: there is no ") && said.contains(&started),
            "{said}"
        );
    }
    skiff(&namespace, &state, &["up"])?;
    skiff(&namespace, &state, &["down"])?;
    for words in [&["get", "pods"][..], &["why", "pod/x"], &["logs", "x"]] {
        let said = skiff(&namespace, &state, words).unwrap_err().to_string();
        let wanted = "no API server answers at https://127.0.0.1:6443";
        assert!(said.contains(wanted) && said.contains(&started), "{said}");
        for word in ["hyper", "client error", "os error"] {
            assert!(!said.contains(word), "{said}");
        }
    }
    no_agent();
    skiff(&namespace, &state, &["down", "--purge"])?;
    Ok(())
}
