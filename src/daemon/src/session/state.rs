//! What a session may do next: pure, without locks, without time.

/// Where a session is. See the diagram in [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its first sandbox is being started.
    Opening,
    /// It has a sandbox.
    Running,
    /// It has a sandbox whose processes are held still.
    Frozen,
    /// Its sandbox is being ended, and the session kept.
    Dozing,
    /// It has none, and comes back when asked.
    Asleep,
    /// A sandbox is being started for it again, or let go on.
    Waking,
    /// It is being removed.
    Closing,
}

/// What happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The sandbox that was asked for runs and is recorded.
    Launched,
    /// It could not be started.
    LaunchFailed,
    /// The sandbox has ended, by itself or because it was to.
    SandboxEnded,
    /// Its processes are to be held still.
    Freeze,
    /// Its sandbox is to be ended.
    Hibernate,
    /// A command needs a sandbox.
    Wake,
    /// Somebody wants it gone, perhaps with its files.
    Close {
        /// With write layer and workspace.
        purge: bool,
    },
}

/// What the driver has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Start a sandbox.
    Launch,
    /// Hold its processes still.
    Freeze,
    /// Let its processes go on.
    Thaw,
    /// End the sandbox and clear away what is left of it.
    Clear,
    /// Remove what the failed opening has made, and forget the session.
    Undo,
    /// End the sandbox, remove what is not kept, and forget the session.
    Remove {
        /// With write layer and workspace.
        purge: bool,
    },
}

/// It cannot do that now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session that is {state:?} takes no {event:?}")]
pub struct Refused {
    /// Where it is.
    pub state: State,
    /// What happened.
    pub event: Event,
}

/// Where `event` takes a session in `state` (`None`: it is no more), and what is to be done.
///
/// # Errors
/// [`Refused`]: the event makes no sense there; nothing changes.
pub fn next(state: State, event: Event) -> Result<(Option<State>, Option<Effect>), Refused> {
    use Event as E;
    use State as S;
    match (state, event) {
        (S::Opening | S::Waking, E::Launched) => Ok((Some(S::Running), None)),
        (S::Opening, E::LaunchFailed) => Ok((None, Some(Effect::Undo))),
        (S::Waking, E::LaunchFailed) | (S::Running | S::Frozen, E::SandboxEnded) => {
            Ok((Some(S::Asleep), Some(Effect::Clear)))
        }
        (S::Dozing, E::SandboxEnded) => Ok((Some(S::Asleep), None)),
        (S::Running, E::Freeze) => Ok((Some(S::Frozen), Some(Effect::Freeze))),
        (S::Running | S::Frozen, E::Hibernate) => Ok((Some(S::Dozing), Some(Effect::Clear))),
        (S::Frozen, E::Wake) => Ok((Some(S::Waking), Some(Effect::Thaw))),
        (S::Asleep, E::Wake) => Ok((Some(S::Waking), Some(Effect::Launch))),
        (S::Opening | S::Running | S::Frozen | S::Dozing | S::Asleep | S::Waking, E::Close { purge }) => {
            Ok((Some(S::Closing), Some(Effect::Remove { purge })))
        }
        (S::Running | S::Frozen | S::Dozing | S::Asleep | S::Closing, E::Launched | E::LaunchFailed)
        | (S::Opening | S::Asleep | S::Waking | S::Closing, E::SandboxEnded)
        | (S::Opening | S::Frozen | S::Dozing | S::Asleep | S::Waking | S::Closing, E::Freeze)
        | (S::Opening | S::Dozing | S::Asleep | S::Waking | S::Closing, E::Hibernate)
        | (S::Opening | S::Running | S::Dozing | S::Waking | S::Closing, E::Wake)
        | (S::Closing, E::Close { .. }) => Err(Refused { state, event }),
    }
}

impl State {
    /// Whether it counts as a resident sandbox. One that dozes has given its place away already:
    /// the newcomer waits until it is gone.
    #[must_use]
    pub fn is_resident(self) -> bool {
        match self {
            Self::Opening | Self::Running | Self::Frozen | Self::Waking | Self::Closing => true,
            Self::Dozing | Self::Asleep => false,
        }
    }

    /// Whether requests find it.
    #[must_use]
    pub fn is_open(self) -> bool {
        match self {
            Self::Running | Self::Frozen | Self::Dozing | Self::Asleep | Self::Waking => true,
            Self::Opening | Self::Closing => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] =
        [State::Opening, State::Running, State::Frozen, State::Dozing, State::Asleep, State::Waking, State::Closing];
    const EVENTS: [Event; 8] = [
        Event::Launched,
        Event::LaunchFailed,
        Event::SandboxEnded,
        Event::Freeze,
        Event::Hibernate,
        Event::Wake,
        Event::Close { purge: false },
        Event::Close { purge: true },
    ];

    /// Every way of up to six events from the beginning.
    fn every_way(visit: &mut impl FnMut(State, &[Event])) {
        fn go(state: State, way: &mut Vec<Event>, visit: &mut impl FnMut(State, &[Event])) {
            visit(state, way);
            if way.len() == 6 {
                return;
            }
            for event in EVENTS {
                way.push(event);
                if let Ok((Some(to), _)) = next(state, event) {
                    go(to, way, visit);
                }
                way.pop();
            }
        }
        go(State::Opening, &mut Vec::new(), visit);
    }

    #[test]
    fn whatever_happened_a_session_can_be_closed_exactly_once() {
        every_way(&mut |state, way| {
            let closed = way.iter().any(|e| matches!(e, Event::Close { .. }));
            assert_eq!(closed, state == State::Closing, "{way:?}");
            assert_eq!(next(state, Event::Close { purge: true }).is_ok(), !closed, "{way:?}");
        });
    }

    #[test]
    fn a_sandbox_is_started_only_where_there_is_none_and_cleared_before_the_next() {
        every_way(&mut |_, way| {
            // Between two launches there is a clearing: count along the way.
            let (mut state, mut sandboxes) = (State::Opening, 1_i32);
            for event in way {
                let Ok((Some(to), effect)) = next(state, *event) else { break };
                match effect {
                    Some(Effect::Launch) => sandboxes += 1,
                    Some(Effect::Clear | Effect::Remove { .. } | Effect::Undo) => sandboxes -= 1,
                    Some(Effect::Freeze | Effect::Thaw) | None => {}
                }
                assert!((-1..=1).contains(&sandboxes), "{way:?}");
                assert!(to != State::Running || sandboxes == 1, "{way:?}");
                state = to;
            }
        });
    }

    #[test]
    fn files_go_only_when_somebody_said_so() {
        for state in STATES {
            for event in EVENTS {
                if let Ok((_, Some(Effect::Remove { purge: true }))) = next(state, event) {
                    assert_eq!(event, Event::Close { purge: true });
                }
            }
        }
    }
}
