//! What a session may do next: pure, without locks, without time.

/// Where a session is. See the diagram in [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its first sandbox is being started.
    Opening,
    /// It has a sandbox.
    Running,
    /// It has none, and comes back when asked.
    Asleep,
    /// A sandbox is being started for it again.
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
    /// The sandbox has ended by itself.
    SandboxEnded,
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
    /// Clear away what is left of the sandbox.
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
        (S::Waking, E::LaunchFailed) => Ok((Some(S::Asleep), Some(Effect::Clear))),
        (S::Running, E::SandboxEnded) => Ok((Some(S::Asleep), Some(Effect::Clear))),
        (S::Running, E::Wake) => Ok((Some(S::Running), None)),
        (S::Asleep, E::Wake) => Ok((Some(S::Waking), Some(Effect::Launch))),
        (S::Running | S::Asleep | S::Opening | S::Waking, E::Close { purge }) => {
            Ok((Some(S::Closing), Some(Effect::Remove { purge })))
        }
        (S::Running | S::Asleep | S::Closing, E::Launched | E::LaunchFailed)
        | (S::Opening | S::Asleep | S::Waking | S::Closing, E::SandboxEnded)
        | (S::Opening | S::Waking | S::Closing, E::Wake)
        | (S::Closing, E::Close { .. }) => Err(Refused { state, event }),
    }
}

impl State {
    /// Whether it counts as a resident sandbox: it has one, or is getting or losing one.
    #[must_use]
    pub fn is_resident(self) -> bool {
        match self {
            Self::Opening | Self::Running | Self::Waking | Self::Closing => true,
            Self::Asleep => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 5] = [State::Opening, State::Running, State::Asleep, State::Waking, State::Closing];
    const EVENTS: [Event; 6] = [
        Event::Launched,
        Event::LaunchFailed,
        Event::SandboxEnded,
        Event::Wake,
        Event::Close { purge: false },
        Event::Close { purge: true },
    ];

    /// Every way of up to seven events from the beginning.
    fn every_way(visit: &mut impl FnMut(State, &[Event])) {
        fn go(state: State, way: &mut Vec<Event>, visit: &mut impl FnMut(State, &[Event])) {
            visit(state, way);
            if way.len() == 7 {
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
        every_way(&mut |state, way| {
            let effect = next(state, Event::Wake).ok().and_then(|(_, effect)| effect);
            assert_eq!(effect == Some(Effect::Launch), state == State::Asleep, "{way:?}");
        });
        for state in STATES {
            for event in EVENTS {
                if let Ok((Some(State::Asleep), effect)) = next(state, event) {
                    assert_eq!(effect, Some(Effect::Clear), "{state:?} {event:?}");
                }
            }
        }
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
