//! The accept loop: one thread that forks a child for each request and never works itself.
//!
//! ```text
//! accept ─ peer is the service? ─► waiting ─ message, checked ─► queued ─ nobody has its keys ─► job ─► gone
//! ```
//! The child answers on the connection. If it ends without having done so, or in time, a second child undoes what it
//! left, and answers in its place. Children are waited for by their pidfd and nowhere else.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use wire::launch::{Answer, Request};

use crate::connection::{self, Received};
use crate::error::{Error, Failure};
use crate::sys::{self, Child, Forked};
use crate::work::{self, Host, Key};
use crate::{plan, remove};

/// Connections that have not sent their message yet; more wait in the socket's backlog.
const MAX_WAITING: usize = 64;
/// Requests carried out at the same time.
const MAX_JOBS: usize = 64;
/// Requests that wait for others; more are refused.
const MAX_QUEUED: usize = 256;
/// How long a connection may take to send its message.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a request may wait for others of the same sandbox or layer.
const QUEUE_PATIENCE: Duration = Duration::from_secs(60);
/// How long undoing a request, and how long emptying the trash, may take.
const UNDO_SECONDS: u32 = 30;
const JANITOR_SECONDS: u32 = 6 * 3600;

struct Waiting {
    connection: OwnedFd,
    deadline: Instant,
}

struct Queued {
    connection: OwnedFd,
    request: Request,
    descriptors: Vec<OwnedFd>,
    deadline: Instant,
}

/// What a child is for.
enum Task {
    /// Carrying out a request.
    Perform(Request),
    /// Undoing one and giving this answer.
    Undo(Request, Answer),
    /// Emptying the trash.
    Janitor,
}

struct Job {
    child: Child,
    connection: Option<OwnedFd>,
    task: Task,
    deadline: Instant,
    overdue: bool,
}

/// The launcher at work.
pub struct Server {
    host: Host,
    /// Of the launcher itself.
    pid: Pid,
    /// None in children: they keep nobody's connections waiting after the launcher has died.
    listener: Option<OwnedFd>,
    signals: OwnedFd,
    waiting: Vec<Waiting>,
    queue: VecDeque<Queued>,
    jobs: Vec<Job>,
    trash: bool,
    stopping: bool,
}

impl Server {
    /// A server that accepts on `listener` until a signal arrives on `signals`. The trash may have something in it.
    #[must_use]
    pub fn new(host: Host, listener: OwnedFd, signals: OwnedFd) -> Self {
        Self {
            host,
            pid: rustix::process::getpid(),
            listener: Some(listener),
            signals,
            waiting: Vec::new(),
            queue: VecDeque::new(),
            jobs: Vec::new(),
            trash: true,
            stopping: false,
        }
    }

    /// Serve until told to end; then finish what was begun.
    ///
    /// # Errors
    /// poll(2) fails, which it does not.
    pub fn run(mut self) -> Result<Host, Errno> {
        loop {
            self.start_queued();
            self.start_janitor();
            if self.stopping && self.queue.is_empty() && self.jobs.iter().all(|job| matches!(job.task, Task::Janitor)) {
                return Ok(self.host);
            }
            self.wait()?;
            self.expire();
        }
    }

    /// Wait for the next thing to happen, and handle it.
    fn wait(&mut self) -> Result<(), Errno> {
        let timeout = self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|left| Timespec::try_from(left).unwrap_or_default());
        let accepting = !self.stopping && self.waiting.len() < MAX_WAITING;
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(self.waiting.iter().map(|waiting| PollFd::new(&waiting.connection, PollFlags::IN)));
        fds.extend(self.jobs.iter().map(|job| PollFd::new(&job.child.pidfd, PollFlags::IN)));
        let jobs_to = fds.len();
        fds.extend(self.listener.iter().filter(|_| accepting).map(|listener| PollFd::new(listener, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let jobs_from = 1 + self.waiting.len();
        // From the back, so that removing one does not move those that are still to be looked at.
        for index in (jobs_from..jobs_to).rev().filter(|&index| ready[index]) {
            self.job_ended(index - jobs_from);
        }
        for index in (1..jobs_from).rev().filter(|&index| ready[index]) {
            self.message_arrived(index - 1);
        }
        if ready.get(jobs_to) == Some(&true) {
            self.accept();
        }
        if ready[0] {
            let _ = rustix::io::read(&self.signals, &mut [0; 128]);
            self.stopping = true;
            self.waiting.clear();
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|waiting| waiting.deadline);
        let queued = self.queue.iter().map(|queued| queued.deadline);
        let jobs = self.jobs.iter().filter(|job| !job.overdue).map(|job| job.deadline);
        waiting.chain(queued).chain(jobs).min()
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let Ok(connection) = accept_with(listener, SocketFlags::CLOEXEC) else { return };
        let uid = sockopt::socket_peercred(&connection).map(|peer| peer.uid.as_raw());
        if uid == Ok(self.host.config.service_uid) {
            self.waiting.push(Waiting { connection, deadline: Instant::now() + MESSAGE_PATIENCE });
        } else {
            let reason = format!("only uid {} is served", self.host.config.service_uid);
            connection::answer(&connection, &Error::Refused { field: "peer", reason }.into());
        }
    }

    fn message_arrived(&mut self, index: usize) {
        let received = connection::receive(&self.waiting[index].connection);
        if matches!(received, Received::Nothing) {
            return;
        }
        let Waiting { connection, .. } = self.waiting.swap_remove(index);
        let (request, descriptors) = match received {
            Received::Request(request, descriptors) => (request, descriptors),
            Received::Bad(error) => return connection::answer(connection, &error.into()),
            Received::Nothing | Received::Closed => return,
        };
        if let Err(error) = plan::check(&request, descriptors.len(), &self.host.config) {
            return connection::answer(connection, &error.into());
        }
        if self.queue.len() >= MAX_QUEUED {
            return connection::answer(connection, &busy(&request, "too many requests wait"));
        }
        let deadline = Instant::now() + QUEUE_PATIENCE;
        self.queue.push_back(Queued { connection, request, descriptors, deadline });
    }

    /// Start every queued request whose sandbox and layer nobody works on, in order of arrival.
    fn start_queued(&mut self) {
        let mut taken: Vec<Key> = self.jobs.iter().flat_map(|job| task_keys(&job.task)).collect();
        let mut index = 0;
        while index < self.queue.len() && self.jobs.len() < MAX_JOBS {
            let keys = work::keys(&self.queue[index].request);
            let free = keys.iter().all(|key| !taken.contains(key));
            taken.extend(keys);
            if !free {
                index += 1;
            } else if let Some(queued) = self.queue.remove(index) {
                self.start(queued);
            }
        }
    }

    fn start(&mut self, queued: Queued) {
        let Queued { connection, request, descriptors, .. } = queued;
        let seconds = work::seconds(&request, &self.host.config);
        match sys::fork(None) {
            Ok(Forked::Child) => {
                self.become_child(seconds);
                connection::hold(connection);
                let answer = work::perform(&self.host, &request, descriptors);
                connection::answer_held(&answer);
                sys::exit(0)
            }
            Ok(Forked::Parent(child)) => self.track(child, Some(connection), Task::Perform(request), seconds),
            Err(errno) => {
                connection::answer(connection, &Failure::of(work::describe(&request), errno).into());
            }
        }
    }

    fn start_undo(&mut self, connection: Option<OwnedFd>, request: Request, failed: Answer) {
        match sys::fork(None) {
            Ok(Forked::Child) => {
                self.become_child(UNDO_SECONDS);
                work::undo(&self.host, &request);
                if let Some(connection) = connection {
                    connection::answer(connection, &failed);
                }
                sys::exit(0)
            }
            Ok(Forked::Parent(child)) => self.track(child, connection, Task::Undo(request, failed), UNDO_SECONDS),
            Err(_) => {
                if let Some(connection) = connection {
                    connection::answer(connection, &failed);
                }
            }
        }
    }

    /// Empty the trash, unless somebody is at it.
    fn start_janitor(&mut self) {
        if !self.trash || self.stopping || self.jobs.iter().any(|job| matches!(job.task, Task::Janitor)) {
            return;
        }
        self.trash = false;
        match sys::fork(None) {
            Ok(Forked::Child) => {
                self.become_child(JANITOR_SECONDS);
                sys::run_in_background();
                let emptied = remove::empty(self.host.store.trash.as_fd());
                sys::exit(i32::from(emptied.is_err()))
            }
            Ok(Forked::Parent(child)) => self.track(child, None, Task::Janitor, JANITOR_SECONDS),
            // The trash is emptied at the next removal, or the next start.
            Err(_) => {}
        }
    }

    fn track(&mut self, child: Child, connection: Option<OwnedFd>, task: Task, seconds: u32) {
        let deadline = Instant::now() + Duration::from_secs(u64::from(seconds));
        self.jobs.push(Job { child, connection, task, deadline, overdue: false });
    }

    /// In a new child: nothing of other requests stays open, and it ends some time even if the launcher does not live to end it.
    fn become_child(&mut self, seconds: u32) {
        self.listener = None;
        self.waiting.clear();
        self.queue.clear();
        self.jobs.clear();
        sys::reset_signals();
        sys::ignore_sigpipe();
        // Whoever starts the launcher again takes what it finds for all there is: nothing may go on behind its back.
        let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if tied.is_err() || rustix::process::getppid() != Some(self.pid) {
            sys::exit(1);
        }
        sys::end_after(seconds + 5);
    }

    fn job_ended(&mut self, index: usize) {
        let Job { child, connection, task, overdue, .. } = self.jobs.swap_remove(index);
        let status = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
        let succeeded = matches!(&status, Ok(Some(status)) if status.exit_status() == Some(0));
        match task {
            Task::Perform(request) => {
                self.trash |= work::discards(&request);
                if !succeeded {
                    let seconds = work::seconds(&request, &self.host.config);
                    let why = if overdue {
                        format!("it took longer than {seconds} s")
                    } else {
                        "its process died".to_owned()
                    };
                    let failed = Failure::reported(work::describe(&request), None, &why).into();
                    self.start_undo(connection, request, failed);
                }
            }
            Task::Undo(_, failed) => {
                self.trash = true;
                if let Some(connection) = connection.filter(|_| !succeeded) {
                    connection::answer(connection, &failed);
                }
            }
            Task::Janitor => {}
        }
    }

    /// End what has taken too long.
    fn expire(&mut self) {
        let now = Instant::now();
        self.waiting.retain(|waiting| waiting.deadline > now);
        for job in self.jobs.iter_mut().filter(|job| !job.overdue && job.deadline <= now) {
            job.overdue = true;
            // It has a pidfd, so it is this child or nobody.
            let _ = rustix::process::pidfd_send_signal(&job.child.pidfd, Signal::KILL);
        }
        while let Some(index) = self.queue.iter().position(|queued| queued.deadline <= now) {
            let Some(queued) = self.queue.remove(index) else { return };
            connection::answer(queued.connection, &busy(&queued.request, "others of the same name take too long"));
        }
    }
}

fn task_keys(task: &Task) -> Vec<Key> {
    match task {
        Task::Perform(request) | Task::Undo(request, _) => work::keys(request),
        Task::Janitor => Vec::new(),
    }
}

fn busy(request: &Request, why: &str) -> Answer {
    Failure::reported(work::describe(request), Some(Errno::BUSY.raw_os_error()), &format!("busy: {why}")).into()
}
