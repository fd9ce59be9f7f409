//! Network for a process that performs one operation and exits.

use super::{Bridge, Place, kernel};
use crate::{AttachSpec, Attachment, Error, Ranges};

impl Bridge {
    pub(crate) fn start_now(&self, ranges: Ranges) -> Result<(), Error> {
        self.inner.start(ranges)
    }

    pub(crate) fn join_now(&self, spec: &AttachSpec, place: &Place) -> Result<Attachment, Error> {
        self.inner.attach(spec, Some(place)).map(|(attachment, _)| attachment)
    }

    pub(crate) fn detach_now(&self, sandbox: &str) -> Result<(), Error> {
        self.inner.detach(sandbox)
    }

    pub(crate) fn known(&self) -> Vec<Attachment> {
        self.inner.records().attachments()
    }

    /// True if a sandbox's host end is a port of the bridge.
    pub(crate) fn is_connected(&self, sandbox: &str) -> Result<bool, Error> {
        let link = self.link(sandbox);
        kernel::with(|kernel| kernel.is_port(&self.inner.config.bridge, &link))
    }

    /// Host end of a sandbox's veth pair.
    pub(crate) fn link(&self, sandbox: &str) -> String {
        self.inner.records().link(sandbox)
    }
}
