//! Image volumes: files of an image, read-only.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_plan::pod::pods;
use runtime::ImageFiles;

use super::plan::Plan;
use super::unstarted::Failure;

/// Mounts the image volumes of a container that are not mounted yet; returns their paths by the
/// volumes' names.
pub(in crate::pod::worker) async fn mount(plan: &Plan) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let mut shown = BTreeMap::new();
    for (volume, image) in &plan.volume_images {
        let place = plan
            .context
            .volumes
            .image_directory(pods::uid(&plan.pod), &plan.sandbox, &image.id);
        let place = place.map_err(|error| Failure::creation(image::chain(&error)))?;
        if !place.mounted {
            let files = ImageFiles {
                layers: image.layers.clone(),
                snapshot: image.snapshot.clone(),
            };
            let runtime = &plan.context.parts.runtime;
            let mounted = runtime.mount_image(&plan.sandbox, files, place.path.clone()).await;
            mounted.map_err(|error| Failure {
                lost: error.is_loss(),
                ..Failure::creation(image::chain(&error))
            })?;
        }
        shown.insert(volume.clone(), place.path);
    }
    Ok(shown)
}
