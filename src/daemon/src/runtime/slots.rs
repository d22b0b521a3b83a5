//! Which ranges of ids are in use: one for each sandbox that runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Slots 1 to `count` - 1; slot 0 owns the files on disk and is nobody's. The last is given out by
/// [`Slots::beside`] alone: to a process that builds images while a service runs.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Mutex<Free>>);

#[derive(Debug)]
struct Free {
    /// Given back, in that order.
    returned: VecDeque<u32>,
    /// Never given out yet: this one and all above, below `count`.
    next: u32,
    count: u32,
    /// Given to nobody here.
    others: u32,
}

/// A slot in use; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    number: u32,
    slots: Slots,
}

impl Slots {
    /// As many as the launcher's configuration has.
    #[must_use]
    pub fn new(count: u32) -> Self {
        let others = count.saturating_sub(1);
        Self(Arc::new(Mutex::new(Free { returned: VecDeque::new(), next: 1, count, others })))
    }

    /// For another process than the service: one slot, which the service gives to nobody.
    #[must_use]
    pub fn beside(count: u32) -> Self {
        let returned = VecDeque::from([count.saturating_sub(1)]);
        Self(Arc::new(Mutex::new(Free { returned, next: count, count, others: 0 })))
    }

    /// The slot that has been free the longest; `None` if all are in use. What the kernel still clears away of
    /// the last sandbox in one (its network device, some 20 ms) is gone when it is given out again.
    #[must_use]
    pub fn take(&self) -> Option<Slot> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = if free.next < free.count && free.next != free.others {
            free.next += 1;
            free.next - 1
        } else {
            free.returned.pop_front()?
        };
        Some(Slot { number, slots: self.clone() })
    }

    /// Exactly this slot, of a sandbox that runs already; `None` if it is in use or out of range.
    #[must_use]
    pub fn claim(&self, number: u32) -> Option<Slot> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if number == 0 || number >= free.count {
            return None;
        }
        if number >= free.next {
            let skipped = free.next..number;
            free.returned.extend(skipped);
            free.next = number + 1;
        } else {
            let at = free.returned.iter().position(|free| *free == number)?;
            free.returned.remove(at);
        }
        Some(Slot { number, slots: self.clone() })
    }
}

impl Slot {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number != free.others {
            free.returned.push_back(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_is_given_twice() {
        let slots = Slots::new(4);
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(held.iter().map(Slot::number).collect::<Vec<_>>(), [1, 2]);
        assert!(slots.claim(2).is_none());
        drop(held);
        assert_eq!(slots.take().map(|s| s.number()), Some(1));
    }

    #[test]
    fn the_last_one_is_another_process_s() {
        let beside = Slots::beside(4);
        let other = beside.take().unwrap();
        assert_eq!((other.number(), beside.take().is_none()), (3, true));
        // One that had it before there was such a process keeps it, and nobody gets it after that.
        let slots = Slots::new(4);
        drop(slots.claim(3).unwrap());
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(held.iter().map(Slot::number).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_claimed_slot_leaves_those_below_it_free() {
        let slots = Slots::new(10);
        let claimed = slots.claim(5).unwrap();
        assert!(slots.claim(5).is_none() && slots.claim(0).is_none() && slots.claim(10).is_none());
        let rest: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(rest.len(), 7);
        assert!(rest.iter().all(|s| s.number() != claimed.number()));
    }
}
