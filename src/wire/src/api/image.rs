//! Images: what there is, and what an operator asks of it.

use serde::{Deserialize, Serialize};

wire_type! {
    /// One image of the local store, an element of `GET /images` (service token). Ours.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ImageInfo {
        /// Its reference, or the tag that its definition gives it.
        pub reference: String,
        /// What identifies its content: of a pulled image its manifest's digest; null if it is not ready.
        #[serde(default)]
        pub digest: Option<String>,
        /// How it came: `pulled`, `imported`, `bootstrapped` or `built`; null if it is not ready.
        #[serde(default)]
        pub origin: Option<String>,
        /// Aliases of the runtimes that use it, sorted.
        pub runtimes: Vec<String>,
        /// `ready`, `building`, `failed` or `absent`.
        pub state: String,
        /// Bytes of its layers, shared ones included; null if it is not ready.
        pub size: Option<u64>,
        /// Bytes of those layers that no other image has: what its removal frees; null if it is not ready.
        #[serde(default)]
        pub own_size: Option<u64>,
        /// Its layers, topmost first.
        pub layers: Vec<String>,
        /// When it was made.
        pub created_at: Option<f64>,
        /// Why it failed, if it did.
        pub error: Option<String>,
    }
}

wire_type! {
    /// Body of `POST /images/pull`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct PullRequest {
        /// The image: `debian:12`, `ghcr.io/owner/image@sha256:…`. 1 to 512 characters.
        pub reference: String,
    }
}

wire_type! {
    /// How far a pull is.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct PullProgress {
        /// Layers of the image; 0 until its manifest is there.
        pub layers: u64,
        /// Layers that are in the store.
        pub layers_ready: u64,
        /// Bytes of the layers that have to be fetched, as they are packed; 0 until the manifest is there.
        pub bytes: u64,
        /// Bytes of them that have come.
        pub bytes_received: u64,
        /// How often a connection broke off and the rest was asked for.
        pub resumed: u64,
    }
}

wire_type! {
    /// One line of the answer to `POST /images/pull`. The last is `done` or `failed`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type", rename_all = "snake_case")]
    pub enum PullEvent {
        /// Sent while there is something new, and every 10 s otherwise.
        Progress {
            /// How far it is.
            progress: PullProgress,
        },
        /// The image is here.
        Done {
            /// The image.
            image: Box<ImageInfo>,
            /// How far it went.
            progress: PullProgress,
        },
        /// It is not.
        Failed {
            /// Why.
            error: String,
        },
    }
}

wire_type! {
    /// Body of `POST /images/gc`.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct GcRequest {
        /// Also every image that no session and no runtime uses; else only what superseded images left.
        #[serde(default)]
        pub unused: bool,
        /// Only say what would be removed.
        #[serde(default)]
        pub dry_run: bool,
        /// Also every package cache of builds; else only what is above their ceiling.
        #[serde(default)]
        pub caches: bool,
    }
}

wire_type! {
    /// What was removed of the image store, or would be.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Removed {
        /// References of images.
        pub images: Vec<String>,
        /// Layers.
        pub layers: Vec<String>,
        /// Manifests, configurations, and what pulls left that did not end well.
        pub files: u64,
        /// Package caches of builds that were emptied.
        #[serde(default)]
        pub caches: Vec<String>,
        /// Bytes that this frees.
        pub bytes: u64,
    }
}

wire_type! {
    /// Answer of `GET /images/caches`: what builds keep of what package managers have fetched.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct BuildCaches {
        /// Bytes that they may have together (`build_cache`); null: no ceiling. When a build has ended, those that are too
        /// large together are emptied, least recently used first.
        pub ceiling: Option<u64>,
        /// Bytes that they have.
        pub bytes: u64,
        /// Each.
        pub caches: Vec<BuildCache>,
    }
}

wire_type! {
    /// A package cache that builds share.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct BuildCache {
        /// Whose it is: `pip` (and uv's), `npm`, `apt` or `cargo`.
        pub manager: String,
        /// Bytes on disk.
        pub bytes: u64,
        /// Whether that is everything. If not, looking took too long: it is more than this.
        pub complete: bool,
        /// When a file of it was last used, as far as the file system keeps that; null: there is none.
        pub used_at: Option<f64>,
    }
}
