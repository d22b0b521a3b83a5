//! Which CPUs a sandbox runs on: as many as its ceiling, so that programs that count them start as many threads, and
//! others than its neighbours', by its slot.

/// The CPUs of a kernel list such as `0-3,8`; empty for one that is none, or tells of more than 4096.
#[must_use]
pub fn parse(list: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if first <= last && last < 4096 => cpus.extend(first..=last),
            _ => return Vec::new(),
        }
    }
    cpus
}

/// `count` of these CPUs for the sandbox in `slot`, as a kernel list: consecutive ones, beginning where those of the
/// slot before end. `None` if that is all of them.
#[must_use]
pub fn choose(cpus: &[u32], count: u32, slot: u32) -> Option<String> {
    let (total, count) = (cpus.len(), count as usize);
    if count == 0 || count >= total {
        return None;
    }
    let first = slot as usize * count % total;
    let mut chosen: Vec<u32> = cpus.iter().cycle().skip(first).take(count).copied().collect();
    chosen.sort_unstable();
    Some(chosen.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(parse("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse("5"), [5]);
        for nonsense in ["", "a", "3-1", "0-4294967295", "0,,x"] {
            assert!(parse(nonsense).is_empty(), "{nonsense:?}");
        }
    }

    #[test]
    fn neighbours_get_other_cpus_and_all_of_them_get_used() {
        let cpus = parse("0-7");
        let of = |slot| choose(&cpus, 3, slot).unwrap();
        assert_eq!([of(0), of(1), of(2), of(3)], ["0,1,2", "3,4,5", "0,6,7", "1,2,3"]);
        let mut used = vec![0; 8];
        for slot in 1..=80 {
            parse(&of(slot)).into_iter().for_each(|cpu| used[cpu as usize] += 1);
        }
        assert_eq!(used, [30; 8]);
    }

    #[test]
    fn who_may_use_all_is_not_bound() {
        let cpus = parse("0-1");
        assert_eq!(choose(&cpus, 2, 1), None);
        assert_eq!(choose(&cpus, 9, 1), None);
        assert_eq!(choose(&[], 1, 1), None);
        assert_eq!(choose(&cpus, 1, 1).as_deref(), Some("1"));
    }
}
