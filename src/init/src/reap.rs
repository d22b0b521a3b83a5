//! The only wait loop. Every child of PID 1 ends here: the commands' main processes and
//! whatever they left behind.

use crate::sys::{Reaped, wait_any};

/// Most children reaped in one turn, so that a storm of orphans cannot keep the init from its socket.
const PER_TURN: usize = 256;

/// Reaps children that have ended. Whether there may be more.
pub fn turn(mut each: impl FnMut(Reaped)) -> bool {
    for _ in 0..PER_TURN {
        match wait_any() {
            Some(reaped) => each(reaped),
            None => return false,
        }
    }
    true
}
