//! The last step of a launch: executing the init, and knowing whether it happened.
//!
//! libcontainer tells the container to go on and looks no further. Here the descriptor of a pipe closes when execve(2)
//! succeeds, and carries its errno when it does not.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;

use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Spec;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Failure, Result, Step};

/// Executes what the configuration says, without looking for it on any `PATH`.
#[derive(Clone)]
pub struct ExecInit {
    reporter: Rc<OwnedFd>,
}

/// The launcher's end.
pub struct Outcome {
    report: OwnedFd,
}

/// An executor for one launch, and what it will tell.
///
/// # Errors
/// A pipe cannot be made.
pub fn new() -> Result<(ExecInit, Outcome)> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe to the init")?;
    Ok((ExecInit { reporter: Rc::new(reporter) }, Outcome { report }))
}

impl Outcome {
    /// Wait until the init is executed, or its process gone. The executor must have been dropped here.
    ///
    /// # Errors
    /// It could not be executed. That its process died before looks like success: look at the cgroup.
    pub fn wait(self) -> Result<()> {
        let mut errno = [0; 4];
        let length = rustix::io::read(&self.report, &mut errno).step(|| "wait for the init to be executed")?;
        if length == 0 {
            return Ok(());
        }
        Err(Failure::of("execute the init", Errno::from_raw_os_error(i32::from_le_bytes(errno))))
    }
}

impl Executor for ExecInit {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let arguments = spec.process().as_ref().and_then(|process| process.args().as_ref());
        let (program, arguments) = arguments.and_then(|args| args.split_first()).ok_or(ExecutorError::InvalidArg)?;
        let error = Command::new(program).args(arguments).env_clear().exec();
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        // If nobody reads it, the launch was given up.
        let _ = rustix::io::write(self.reporter.as_ref(), &errno.to_le_bytes());
        Err(ExecutorError::Execution(Box::new(error)))
    }

    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }

    /// The environment of the init is empty: nothing that it does needs one.
    fn setup_envs(&self, _environment: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
