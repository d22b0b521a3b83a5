//! The journal: one line of JSON for each operation, in order, until SQLite has it.
//!
//! Two files: what is being written, and `….moving`, which the mover is putting into SQLite. The
//! first becomes the second by a rename, under the lock that orders the records.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;
use wire::id::SessionId;

use super::{JOURNAL_MAX, Operation, micros};
use crate::metrics;
use crate::store::OperationRow;

/// Records after which the mover does not wait any longer.
const ENOUGH: usize = 500;
/// Longest line that can be a record, in bytes: every text at its limit and escaped.
const LINE_MAX: u64 = 16 << 10;
/// How often it is said that operations are not recorded.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// How much the mover should hurry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It knows already.
    None,
    /// There is something to move.
    Soon,
    /// There is enough to move.
    Now,
}

/// The numbers given out in one opening of a session.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    opened: u64,
    last: u64,
    /// When the last operation ended, Unix seconds.
    at: f64,
}

/// What is being written, and the numbers.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    moving: PathBuf,
    file: File,
    /// Bytes that are whole lines; a failed write is cut off again.
    length: u64,
    most: u64,
    /// Records written since the last handing over.
    waiting: usize,
    /// Whether something that was handed over is not yet reported as moved.
    handed: bool,
    last_id: u64,
    sessions: BTreeMap<SessionId, Numbers>,
    line: Vec<u8>,
    lost: Lost,
    /// Commands whose ends a predecessor of this process has written, as far as they were here and not in the database.
    inherited: HashSet<Uuid>,
}

/// What could not be recorded.
#[derive(Debug, Default)]
struct Lost {
    count: u64,
    said: Option<Instant>,
}

impl Journal {
    /// Open it, go on after the numbers that it and the database (`last_id`) hold, and cut off a torn last line.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(path: &Path, last_id: u64) -> io::Result<Self> {
        let moving = path.with_extension("journal.moving");
        let mut journal = Self {
            path: path.to_owned(),
            moving: moving.clone(),
            file: open(path)?,
            length: 0,
            most: JOURNAL_MAX,
            waiting: 0,
            handed: false,
            last_id,
            sessions: BTreeMap::new(),
            line: Vec::new(),
            lost: Lost::default(),
            inherited: HashSet::new(),
        };
        match File::open(&moving) {
            Ok(file) => {
                journal.take_up(file)?;
                journal.handed = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let left = File::open(path)?;
        journal.length = journal.take_up(left)?;
        journal.file.set_len(journal.length)?;
        Ok(journal)
    }

    #[cfg(test)]
    pub fn bound(&mut self, most: u64) {
        self.most = most;
    }

    /// Continue after the numbers in a file; how many bytes of whole lines it has.
    fn take_up(&mut self, file: File) -> io::Result<u64> {
        let mut lines = Lines::new(file);
        while let Some(row) = lines.next()? {
            self.waiting += 1;
            self.last_id = self.last_id.max(row.id);
            self.inherited.extend(row.command);
            self.adopt(row.session, row.opened, row.seq, row.at);
        }
        Ok(lines.whole)
    }

    /// Write one record. It is numbered only if it is written.
    pub fn append(&mut self, operation: Operation) -> Urgency {
        let row = self.row(operation);
        match self.write(&row) {
            Ok(()) => {}
            Err(error) => {
                self.lost.one(&error);
                return Urgency::Now;
            }
        }
        self.lost.over();
        self.last_id = row.id;
        self.sessions.insert(row.session, Numbers { opened: row.opened, last: row.seq, at: row.at });
        self.waiting += 1;
        metrics::OPERATIONS_QUEUE.set(self.waiting);
        match self.waiting {
            1 => Urgency::Soon,
            ENOUGH => Urgency::Now,
            _ => Urgency::None,
        }
    }

    fn row(&self, operation: Operation) -> OperationRow {
        let subject = operation.subject;
        let opened = micros(subject.opened);
        OperationRow {
            id: self.last_id + 1,
            seq: self.last_seq(&subject.session, opened) + 1,
            session: subject.session,
            opened,
            at: operation.at,
            tenant: subject.tenant,
            agent: subject.caller.agent,
            run: subject.caller.run,
            op: subject.op.name().to_owned(),
            target: subject.target,
            ok: operation.ok,
            detail: operation.detail,
            duration_ms: (operation.duration.as_secs_f64() * 1e4).round() / 10.0,
            request: subject.request.map(|request| request.to_string()),
            command: subject.command,
        }
    }

    fn write(&mut self, row: &OperationRow) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, row)?;
        self.line.push(b'\n');
        let length = self.length + self.line.len() as u64;
        if length > self.most {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the journal is at its limit: its database does not take it up",
            ));
        }
        if let Err(error) = self.file.write_all(&self.line) {
            // A part of it may be there.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length = length;
        Ok(())
    }

    /// Highest number given out in this opening of the session.
    #[must_use]
    pub fn last_seq(&self, session: &SessionId, opened: u64) -> u64 {
        self.sessions.get(session).filter(|numbers| numbers.opened == opened).map_or(0, |numbers| numbers.last)
    }

    /// Whether a predecessor of this process has written the end of this command.
    #[must_use]
    pub fn has_inherited(&self, command: Uuid) -> bool {
        self.inherited.contains(&command)
    }

    /// Go on after `last` in this opening of the session, an operation that ended `at`; when the last one ended that is known.
    pub fn adopt(&mut self, session: SessionId, opened: u64, last: u64, at: f64) -> f64 {
        let known = self.sessions.get(&session).filter(|numbers| numbers.opened == opened);
        let (last, at) = known.map_or((last, at), |known| (last.max(known.last), at.max(known.at)));
        self.sessions.insert(session, Numbers { opened, last, at });
        at
    }

    /// Forget the numbers of sessions that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&SessionId) -> bool) {
        self.sessions.retain(|session, _| keep(session));
    }

    /// Whether there is something to move.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting > 0 || self.handed
    }

    /// The file to be moved: what an earlier time left, else what has been written until now. `None`: nothing.
    ///
    /// # Errors
    /// What the kernel says; then everything is as it was.
    pub fn hand_over(&mut self) -> io::Result<Option<File>> {
        if self.handed {
            return File::open(&self.moving).map(Some);
        }
        if self.length == 0 {
            self.waiting = 0;
            return Ok(None);
        }
        // The new one first: without it nothing may be taken away.
        let next = self.path.with_extension("journal.next");
        let file = open(&next)?;
        file.set_len(0)?;
        std::fs::rename(&self.path, &self.moving)?;
        if let Err(error) = std::fs::rename(&next, &self.path) {
            std::fs::rename(&self.moving, &self.path)?;
            return Err(error);
        }
        let mut full = std::mem::replace(&mut self.file, file);
        (self.length, self.waiting, self.handed) = (0, 0, true);
        metrics::OPERATIONS_QUEUE.set(0);
        full.seek(SeekFrom::Start(0))?;
        Ok(Some(full))
    }

    /// What was handed over is in the database.
    ///
    /// # Errors
    /// What the kernel says; then it is moved again, which changes nothing.
    pub fn moved(&mut self) -> io::Result<()> {
        std::fs::remove_file(&self.moving)?;
        self.handed = false;
        Ok(())
    }
}

impl Lost {
    fn one(&mut self, error: &io::Error) {
        self.count += 1;
        metrics::OPERATIONS_LOST.add(1);
        if self.said.is_none_or(|said| said.elapsed() >= COMPLAIN_EVERY) {
            self.said = Some(Instant::now());
            tracing::error!(
                error = error as &dyn std::error::Error,
                operations = self.count,
                "operations are not recorded"
            );
        }
    }

    fn over(&mut self) {
        if self.count > 0 {
            tracing::warn!(operations = self.count, "operations are recorded again; so many are missing");
            *self = Self::default();
        }
    }
}

/// Only ever appended to, and read from the beginning by whoever moves it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// The records of a journal's file. A line that is none (a power cut leaves such) is passed over.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<File>,
    /// Bytes of whole lines so far.
    whole: u64,
    line: Vec<u8>,
}

impl Lines {
    /// From where the file stands.
    pub fn new(file: File) -> Self {
        Self { reader: BufReader::new(file), whole: 0, line: Vec::new() }
    }

    /// The next record; `None` at the end, which a line without its end is as well.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn next(&mut self) -> io::Result<Option<OperationRow>> {
        loop {
            self.line.clear();
            let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line)?;
            if self.line.last() != Some(&b'\n') && (read as u64) < LINE_MAX {
                return Ok(None);
            }
            self.whole += read as u64;
            if let Ok(row) = serde_json::from_slice(&self.line) {
                return Ok(Some(row));
            }
        }
    }
}
