//! The accept loop: one thread that forks a child for each request and never works itself.
//!
//! ```text
//! accept ─ peer is the service? ─► waiting ─ message, checked ─► queued ─ nobody has its keys ─► job ─► gone
//! ```
//! The child answers on the connection. If it ends without having done so, or in time, a second child undoes what it
//! left, and answers in its place. What takes long and is for nobody else ([`work::is_given_up`]) is ended as well when
//! whoever asked for it is gone. Children are waited for by their pidfd and nowhere else.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use wire::journal::Priority;
use wire::launch::{Answer, Request};

use crate::connection::{self, Received};
use crate::error::{Error, Failure};
use crate::log;
use crate::sys::{self, Child, Forked};
use crate::work::{self, Host, Key};
use crate::{net, plan, remove};

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
/// How long a job may go on when whoever asked for it is gone: one that has answered is about to end.
const PARTING: Duration = Duration::from_secs(1);
/// How long undoing a request, and how long emptying the trash, may take.
const UNDO_SECONDS: u32 = 30;
const JANITOR_SECONDS: u32 = 6 * 3600;
/// How long writing the packet filter's table again may take.
const MEND_SECONDS: u32 = 30;

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
    /// Writing the packet filter's table again that somebody has removed.
    Mend,
}

struct Job {
    child: Child,
    connection: Option<OwnedFd>,
    task: Task,
    deadline: Instant,
    /// Whoever asked for it is gone.
    given_up: bool,
    /// It is being ended.
    overdue: bool,
}

impl Job {
    /// Whose going away ends it.
    fn patron(&self) -> Option<&OwnedFd> {
        match &self.task {
            Task::Perform(request) if !self.given_up && work::is_given_up(request) => self.connection.as_ref(),
            Task::Perform(_) | Task::Undo(..) | Task::Janitor | Task::Mend => None,
        }
    }

    /// It ends soon by itself, or is ended.
    fn give_up(&mut self) {
        self.given_up = true;
        self.deadline = self.deadline.min(Instant::now() + PARTING);
    }
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
    /// Whether somebody removes the packet filter's table; from when a sandbox may need it.
    filter: Option<net::Watch>,
    /// Somebody has.
    unfiltered: bool,
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
            filter: None,
            unfiltered: false,
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
            self.start_mending();
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
        let listener_to = fds.len();
        fds.extend(self.filter.iter().map(|filter| PollFd::new(filter, PollFlags::IN)));
        let filter_to = fds.len();
        // That its other end is closed is told unasked.
        let patrons: Vec<usize> = (0..self.jobs.len()).filter(|&index| self.jobs[index].patron().is_some()).collect();
        fds.extend(self.jobs.iter().filter_map(Job::patron).map(|patron| PollFd::new(patron, PollFlags::empty())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (index, _) in patrons.into_iter().zip(&ready[filter_to..]).filter(|(_, gone)| **gone) {
            self.jobs[index].give_up();
        }
        let jobs_from = 1 + self.waiting.len();
        // From the back, so that removing one does not move those that are still to be looked at.
        for index in (jobs_from..jobs_to).rev().filter(|&index| ready[index]) {
            self.job_ended(index - jobs_from);
        }
        for index in (1..jobs_from).rev().filter(|&index| ready[index]) {
            self.message_arrived(index - 1);
        }
        if ready[jobs_to..listener_to].contains(&true) {
            self.accept();
        }
        if ready[listener_to..filter_to].contains(&true) {
            self.look_at_filter();
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
            // The service asks for what it may not: it is of another version, or not itself any more.
            log::about(&request, Priority::Warning, &format!("{} is not allowed: {error}", work::describe(&request)));
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
        if matches!(request, Request::Network {}) {
            self.watch_filter();
        }
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
                let trash = [&self.host.store.trash, &self.host.store.layer_trash];
                let emptied = trash.map(|trash| remove::empty(trash.as_fd()).is_ok());
                sys::exit(i32::from(emptied.contains(&false)))
            }
            Ok(Forked::Parent(child)) => self.track(child, None, Task::Janitor, JANITOR_SECONDS),
            // The trash is emptied at the next removal, or the next start.
            Err(_) => {}
        }
    }

    /// Be told when the packet filter's table is removed. The service asks for networks before the first sandbox has one, and now
    /// and then while one does; without this it is found out then.
    fn watch_filter(&mut self) {
        let Some(settings) = self.host.config.network.as_ref().filter(|_| self.filter.is_none()) else { return };
        match net::Watch::begin(settings) {
            Ok(watch) => self.filter = Some(watch),
            Err(errno) => log::say(Priority::Warning, &format!("watch the packet filter: {errno}")),
        }
    }

    fn look_at_filter(&mut self) {
        match self.filter.as_ref().map(net::Watch::is_removed) {
            Some(Ok(removed)) => self.unfiltered |= removed,
            Some(Err(errno)) => {
                log::say(Priority::Warning, &format!("watch the packet filter: {errno}"));
                (self.filter, self.unfiltered) = (None, true);
            }
            None => {}
        }
    }

    /// Write the packet filter's table again, unless somebody is at it.
    fn start_mending(&mut self) {
        if !self.unfiltered || self.stopping || self.jobs.iter().any(|job| matches!(job.task, Task::Mend)) {
            return;
        }
        self.unfiltered = false;
        match sys::fork(None) {
            Ok(Forked::Child) => {
                self.become_child(MEND_SECONDS);
                sys::exit(work::mend(&self.host))
            }
            Ok(Forked::Parent(child)) => self.track(child, None, Task::Mend, MEND_SECONDS),
            // The service has it looked at soon.
            Err(_) => {}
        }
    }

    fn track(&mut self, child: Child, connection: Option<OwnedFd>, task: Task, seconds: u32) {
        let deadline = Instant::now() + Duration::from_secs(u64::from(seconds));
        self.jobs.push(Job { child, connection, task, deadline, given_up: false, overdue: false });
    }

    /// In a new child: nothing of other requests stays open, and it ends some time even if the launcher does not live to end it.
    fn become_child(&mut self, seconds: u32) {
        self.listener = None;
        self.filter = None;
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
        let Job { child, connection, task, given_up, overdue, .. } = self.jobs.swap_remove(index);
        let status = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
        let succeeded = matches!(&status, Ok(Some(status)) if status.exit_status() == Some(0));
        match task {
            Task::Perform(request) => {
                self.trash |= work::discards(&request);
                if !succeeded {
                    let seconds = work::seconds(&request, &self.host.config);
                    let (priority, why) = match (overdue, given_up) {
                        (true, true) => (Priority::Info, "whoever asked for it is gone".to_owned()),
                        (true, false) => (Priority::Error, format!("it took longer than {seconds} s")),
                        (false, _) => (Priority::Error, "its process died".to_owned()),
                    };
                    log::about(&request, priority, &format!("{}: {why}", work::describe(&request)));
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
            Task::Janitor | Task::Mend => {}
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
        Task::Janitor | Task::Mend => Vec::new(),
    }
}

fn busy(request: &Request, why: &str) -> Answer {
    Failure::reported(work::describe(request), Some(Errno::BUSY.raw_os_error()), &format!("busy: {why}")).into()
}
