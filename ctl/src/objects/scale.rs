//! `skiff scale`.

use http::Method;
use serde_json::json;

use crate::arguments::{Place, ScaleOptions};
use crate::client::api::Api;
use crate::client::resource::Resources;
use crate::terminal;

pub(crate) async fn run(place: &Place, options: &ScaleOptions) -> anyhow::Result<()> {
    let api = Api::of(place).await?;
    let (resource, name) = Resources::discover(&api).await?.one(&options.target)?;
    let path = format!("{}/scale", resource.object(&options.scope.namespace, &name)?);
    let change = json!({ "spec": { "replicas": options.replicas } });
    api.send(Method::PATCH, &path, "application/merge-patch+json", Some(&change))
        .await?;
    terminal::line(format!("{}/{name} scaled", resource.display()))
}
