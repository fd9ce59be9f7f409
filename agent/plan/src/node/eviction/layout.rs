//! Contents of the node's file systems: eviction must free space on the full one.

use super::Signal;
use crate::node::storage::{DiskUse, Used};

/// Location of images and of the containers' writable layers. All other data of pods is in the
/// node's own directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Both on the node's file system.
    #[default]
    Together,
    /// Both on another file system.
    Apart,
    /// Only the images on another file system.
    Split,
}

/// Contents of the file system that a signal measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The containers' writable layers.
    pub layers: bool,
    /// Logs, volumes, and the files that the node provides to pods.
    pub files: bool,
    /// The images.
    pub images: bool,
}

impl Layout {
    /// Determines the layout by the device numbers of the node's directory, the images and the
    /// writable layers.
    pub const fn of(node: u64, images: u64, layers: u64) -> Self {
        if images == node {
            Self::Together
        } else if images == layers {
            Self::Apart
        } else {
            Self::Split
        }
    }

    /// Returns the contents of the file system that a signal measures; none for signals that
    /// measure no file system.
    pub const fn contents(self, signal: Signal) -> Contents {
        let (node, images) = match signal {
            Signal::NodefsAvailable | Signal::NodefsInodesFree => (true, false),
            Signal::ImagefsAvailable | Signal::ImagefsInodesFree => (false, true),
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => (false, false),
        };
        let either = node || images;
        let (layers, files, images) = match self {
            Self::Together => (either, either, either),
            Self::Apart => (images, node, images),
            Self::Split => (node, node, images),
        };
        Contents { layers, files, images }
    }
}

impl Contents {
    /// Returns a pod's usage of that file system.
    pub fn of(self, disk: &DiskUse) -> Used {
        let layers = if self.layers { disk.layers() } else { Used::default() };
        let files = if self.files { disk.files() } else { Used::default() };
        layers.plus(files)
    }

    /// True if the node can free space there without an eviction: by removing dead containers or
    /// unused images.
    pub const fn can_shrink(self) -> bool {
        self.layers || self.images
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_tell_what_lies_where() {
        for (node, images, layers, expected) in [
            (1, 1, 1, Layout::Together),
            (1, 2, 2, Layout::Apart),
            (1, 2, 1, Layout::Split),
            (1, 2, 3, Layout::Split),
            (1, 1, 2, Layout::Together),
        ] {
            assert_eq!(Layout::of(node, images, layers), expected, "{node} {images} {layers}");
        }
    }

    #[test]
    fn a_full_file_system_is_given_back_what_lies_on_it() {
        let shown = |signal: Signal, layout: Layout| {
            let Contents { layers, files, images } = layout.contents(signal);
            let all = [(layers, "layers"), (files, "files"), (images, "images")];
            let there = all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name);
            there.collect::<Vec<_>>().join(" ")
        };
        for (layout, node, image) in [
            (Layout::Together, "layers files images", "layers files images"),
            (Layout::Apart, "files", "layers images"),
            (Layout::Split, "layers files", "images"),
        ] {
            for signal in [Signal::NodefsAvailable, Signal::NodefsInodesFree] {
                assert_eq!(shown(signal, layout), node, "{layout:?}");
            }
            for signal in [Signal::ImagefsAvailable, Signal::ImagefsInodesFree] {
                assert_eq!(shown(signal, layout), image, "{layout:?}");
            }
            assert_eq!(shown(Signal::MemoryAvailable, layout), "");
            assert_eq!(shown(Signal::AllocatableMemoryAvailable, layout), "");
        }
        let shrinks = |signal, layout: Layout| layout.contents(signal).can_shrink();
        assert!(!shrinks(Signal::NodefsAvailable, Layout::Apart));
        assert!(shrinks(Signal::NodefsAvailable, Layout::Split));
    }
}
