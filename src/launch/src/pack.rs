//! Layers of the image store as archives, for whoever wants to take an image elsewhere: the archive that a layer came as where
//! its frame is here ([`crate::frame`]), else one made of its files.
//!
//! What reads the layer is confined as what unpacks one is ([`crate::unpack`]): the files are a stranger's.

use std::fs::File;
use std::io::Seek;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use wire::id::LayerId;
use wire::launch::Answer;

use crate::config::Config;
use crate::error::{Failure, Result, Step};
use crate::mount::LOCKED;
use crate::store::{self, Store};
use crate::unpack::{Place, confined};
use crate::{archive, frame};

/// Bytes of the archive for each entry, beside its content: two headers, a long name, what fills up the last block.
const PER_ENTRY: u64 = 8 * 1024;

/// Write the layer as a tar to `output`.
///
/// # Errors
/// There is no such layer, or a step failed; what is in `output` is then of no use.
pub fn pack(config: &Config, store: &Store, layer: &LayerId, output: OwnedFd) -> Result<Answer> {
    let what = format!("pack layer {layer}");
    let dir = store::open_beneath(&store.layers, layer.as_str(), OFlags::RDONLY | OFlags::DIRECTORY);
    let dir = dir.map_err(|errno| Failure::of(format!("{what}: open it"), errno))?;
    let writes = config.max_layer_bytes.saturating_add(config.max_layer_entries.saturating_mul(PER_ENTRY));
    let attributes = LOCKED | libc::MOUNT_ATTR_NOEXEC | libc::MOUNT_ATTR_RDONLY;
    let frame = store.frame(layer)?;
    let place = Place { dir: &dir, attributes, given: (&output, frame.as_ref()), writes };
    confined(config, &what, &place, |output, frame| {
        let mut output = File::from(output);
        if let Some(frame) = frame {
            let root = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            let root = root.step(|| "open the layer's directory")?;
            if frame::rebuild(&root, frame, &mut output, layer, config.max_layer_bytes).is_ok() {
                return Ok(Answer::Done);
            }
            // It is another archive then, of the same files.
            output.rewind().and_then(|()| output.set_len(0)).step(|| "begin the archive again")?;
        }
        archive::write(output.into(), config.max_layer_entries)
    })
}
