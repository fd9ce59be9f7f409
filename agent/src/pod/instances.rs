//! Running instances of containers.

/// Instance of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) attempt: u32,
}

/// Location of an instance in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sandbox: String,
    pub(crate) instance: String,
}
