//! What the launcher answers when it does not do what it was asked.
//!
//! There are two ways: the request is [`Error::Refused`] before anything is done, or a
//! [`Failure`] at a named step on a named object. Both go back to the service, which logs them; the launcher
//! logs the first alone ([`crate::log`]).

use std::error::Error as StdError;

use rustix::io::Errno;
use wire::launch::Answer;

/// Shorthand for what most functions of this program return.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// A request that was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is outside of what the configuration allows.
    #[error("{field}: {reason}")]
    Refused {
        /// Which field.
        field: &'static str,
        /// Why, and what is allowed.
        reason: String,
    },
    /// It was tried.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A step that failed: what was attempted on what, and why it did not work.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct Failure {
    step: String,
    errno: Option<i32>,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Failure {
    /// A failure that is no system call's.
    pub fn new(step: impl Into<String>) -> Self {
        Self { step: step.into(), errno: None, source: None }
    }

    /// A failure of a library, whose words are kept.
    pub fn of(step: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        let errno = errno_of(&source);
        Self { step: step.into(), errno, source: Some(Box::new(source)) }
    }

    /// A failure that a child process reported in an answer.
    pub fn reported(step: String, errno: Option<i32>, message: &str) -> Self {
        let words = message.strip_prefix(&step).unwrap_or(message).trim_start_matches(": ").to_owned();
        let source = (!words.is_empty()).then(|| words.into());
        Self { step, errno, source }
    }

    /// The step with every reason, on one line.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.step.clone();
        let mut source = self.source.as_deref().map(|s| s as &dyn StdError);
        while let Some(error) = source {
            let words = error.to_string();
            if !text.ends_with(&words) {
                text.push_str(": ");
                text.push_str(&words);
            }
            source = error.source();
        }
        text
    }
}

/// The errno at the bottom of a chain of errors.
fn errno_of(error: &(dyn StdError + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(errno) = error.downcast_ref::<Errno>() {
            return Some(errno.raw_os_error());
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.raw_os_error();
        }
        next = error.source();
    }
    None
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        let message = failure.chain();
        Self::Failed { step: failure.step, errno: failure.errno, message }
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused { field, reason } => Self::Refused { field: field.to_owned(), reason },
            Error::Failed(failure) => failure.into(),
        }
    }
}

/// Naming the step at which something failed.
pub trait Step<T> {
    /// On failure, say which step this was.
    ///
    /// # Errors
    /// The [`Failure`] of that step.
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: StdError + Send + Sync + 'static> Step<T> for std::result::Result<T, E> {
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| Failure::of(step(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_step_errno_and_chain() {
        let failed: Result<()> = Err(Errno::NOENT).step(|| "open layer x");
        let Err(failure) = failed else { panic!("it is an error") };
        let Answer::Failed { step, errno, message } = failure.into() else { panic!("not Failed") };
        assert_eq!((step.as_str(), errno), ("open layer x", Some(2)));
        assert_eq!(message, "open layer x: No such file or directory (os error 2)");
    }
}
