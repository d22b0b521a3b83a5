//! The one unsafe call of the doctor: asking the kernel about its clock.
#![allow(unsafe_code)] // adjtimex(2) has no safe wrapper here

/// Whether something keeps the kernel's clock right; nothing where it may not be asked.
#[must_use]
pub fn clock_is_synchronised() -> Option<bool> {
    // SAFETY: a `timex` is numbers, for which zeroes are values; `modes` 0 asks and sets nothing.
    let mut about: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole `timex` of ours, which the call fills.
    let state = unsafe { libc::adjtimex(&raw mut about) };
    (state >= 0).then_some(state != libc::TIME_ERROR && about.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_the_same_twice() {
        assert_eq!(clock_is_synchronised(), clock_is_synchronised());
    }
}
