//! What create, update and status updates keep and drop, for the many kinds with a spec and a status.

/// Inside `impl Kind for K`: a creator's status is dropped, an update keeps the status, an update of `status` keeps the
/// spec, the labels and the owners. Needs fields `spec` and `status` that are `Option`s.
#[macro_export]
macro_rules! spec_and_status {
    () => {
        fn prepare_create(&mut self) {
            self.status = Some(Default::default());
        }

        fn prepare_update(&mut self, old: &Self) {
            self.status.clone_from(&old.status);
        }

        fn prepare_status(&mut self, old: &Self) {
            self.spec.clone_from(&old.spec);
            self.metadata.labels.clone_from(&old.metadata.labels);
            self.metadata
                .owner_references
                .clone_from(&old.metadata.owner_references);
        }

        fn spec_changed(&self, old: &Self) -> bool {
            self.spec != old.spec
        }
    };
}
