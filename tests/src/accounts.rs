//! The service account that pods run as where no controller makes one.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

/// Makes the account `default` of the namespace `default`, whose pods mount no token.
///
/// # Errors
/// The server's refusal.
pub async fn quiet(client: Client) -> Result<(), kube::Error> {
    let account = ServiceAccount {
        metadata: ObjectMeta {
            name: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
    accounts.create(&PostParams::default(), &account).await.map(drop)
}
