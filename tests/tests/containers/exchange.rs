//! Images between the node and files.

use anyhow::ensure;

use super::cluster::Cluster;

/// Images are exported and imported, and unused ones are pruned.
pub(crate) fn images_come_and_go(cluster: &Cluster, nginx: &str) -> anyhow::Result<()> {
    let listed = || cluster.machine.skiff(["image", "list"]);
    let file = cluster.folder.path().join("nginx.tar").display().to_string();
    cluster.machine.skiff(["image", "export", nginx, "-o", &file])?;
    let missing = cluster
        .machine
        .skiff(["image", "export", "example.org/none:1", "-o", &file]);
    ensure!(
        missing.is_err_and(|error| format!("{error:#}").contains("not found")),
        "an image that is not there"
    );
    let kept = cluster.machine.skiff(["image", "prune"])?;
    ensure!(kept.contains("freed 0 KiB") && listed()?.contains(nginx), "{kept}");
    let gone = cluster.machine.skiff(["image", "prune", "--all"])?;
    ensure!(
        gone.contains(&format!("removed {nginx}")) && gone.contains("MiB"),
        "{gone}"
    );
    ensure!(listed()?.lines().count() == 1, "{}", listed()?);
    cluster.machine.skiff(["image", "import", &file])?;
    ensure!(listed()?.contains(nginx), "{}", listed()?);
    Ok(())
}
