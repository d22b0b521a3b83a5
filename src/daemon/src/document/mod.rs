//! Documents that untrusted code wrote: the text of a PDF, a small picture of an image.
//!
//! Their parsers are large, and what they parse is hostile. So each document is parsed by a child
//! process of its own, this program again as `sandboxd document TASK`: it gets the document on its
//! standard input and answers on its standard output, with no environment, little memory and CPU time, and
//! a seccomp filter under which it can use no other descriptor, and open, connect and start nothing
//! ([`confine`]). What it cannot parse in its time it does not parse; the service is not touched.
//!
//! The answer of a child is hostile too: bounded, checked, and never more than text or picture.

mod child;
mod confine;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod pdf;
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use child::{Answer, Order};

/// Children at once: each may use 512 MiB of memory and a whole CPU.
const AT_ONCE: usize = 2;
/// How long a document may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a child may take, all told; see [`confine::CPU_SECONDS`] for what of it is work.
const DEADLINE: Duration = Duration::from_secs(15);
/// Largest document that is looked at, in bytes.
const DOCUMENT_MAX: usize = 64 << 20;
/// Longest text of a PDF, in bytes.
const TEXT_MAX: usize = 16 << 20;
/// Largest thumbnail, in bytes.
const PICTURE_MAX: usize = 512 << 10;

/// Why there is no text or picture.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The document is broken, encrypted, empty, or too much work.
    #[error("Failed to parse {what}: {reason}")]
    Unreadable {
        /// `PDF` or `image`.
        what: &'static str,
        /// In words.
        reason: String,
    },
    /// Too many documents are waiting.
    #[error("too many documents are being read; repeat later")]
    Busy,
    /// The child could not be run.
    #[error("run a child process to read a document")]
    Child(#[source] std::io::Error),
}

/// What a child is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Task {
    /// Write the text of the PDF.
    PdfText,
    /// Write a small PNG or JPEG of the image.
    Thumbnail,
}

/// Runs the children. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Documents {
    program: Arc<PathBuf>,
    turns: Arc<Semaphore>,
}

/// A small picture of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// `image/png` or `image/jpeg`.
    pub media_type: &'static str,
    /// The file.
    pub bytes: Vec<u8>,
}

impl Default for Documents {
    fn default() -> Self {
        // The program that runs, even when an upgrade has replaced its file meanwhile.
        Self { program: Arc::new("/proc/self/exe".into()), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Documents {
    /// The text of a PDF.
    ///
    /// # Errors
    /// [`DocumentError`].
    pub async fn pdf_text(&self, pdf: Vec<u8>) -> Result<String, DocumentError> {
        let bytes = self.perform(Task::PdfText, pdf, TEXT_MAX).await?;
        String::from_utf8(bytes).map_err(|_| Task::PdfText.unreadable("its text is none"))
    }

    /// A small picture of an image.
    ///
    /// # Errors
    /// [`DocumentError`].
    pub async fn thumbnail(&self, image: Vec<u8>) -> Result<Picture, DocumentError> {
        let bytes = self.perform(Task::Thumbnail, image, PICTURE_MAX).await?;
        let media_type = match bytes.as_slice() {
            [0x89, b'P', b'N', b'G', ..] => "image/png",
            [0xff, 0xd8, 0xff, ..] => "image/jpeg",
            _ => return Err(Task::Thumbnail.unreadable("its picture is none")),
        };
        Ok(Picture { media_type, bytes })
    }

    async fn perform(&self, task: Task, input: Vec<u8>, most: usize) -> Result<Vec<u8>, DocumentError> {
        if input.len() > DOCUMENT_MAX {
            return Err(task.unreadable(&format!("it is over {} MiB", DOCUMENT_MAX >> 20)));
        }
        let turn = tokio::time::timeout(PATIENCE, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(DocumentError::Busy) };
        let args = vec!["document".to_owned(), task.name().to_owned()];
        let order = Order { program: &self.program, args, input, most, deadline: DEADLINE };
        match child::run(order).await.map_err(DocumentError::Child)? {
            Answer::Done(bytes) => Ok(bytes),
            Answer::Refused(reason) => Err(task.unreadable(&reason)),
            Answer::Died => Err(task.unreadable("it is too much work, or broken")),
            Answer::TooLong => Err(task.unreadable("what is in it is too long")),
        }
    }
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::PdfText => "pdf-text",
            Self::Thumbnail => "thumbnail",
        }
    }

    fn unreadable(self, reason: &str) -> DocumentError {
        let what = match self {
            Self::PdfText => "PDF",
            Self::Thumbnail => "image",
        };
        DocumentError::Unreadable { what, reason: reason.to_owned() }
    }
}

/// The child's whole life: confine itself, read, work, answer.
#[must_use]
pub fn main(task: Task) -> ExitCode {
    child::answer(|document| match task {
        Task::PdfText => pdf::text(document).map(String::into_bytes),
        Task::Thumbnail => picture::thumbnail(document),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_the_name_that_the_command_line_knows() {
        for task in [Task::PdfText, Task::Thumbnail] {
            let parsed = <Task as clap::ValueEnum>::from_str(task.name(), false);
            assert_eq!(parsed, Ok(task));
        }
    }

    #[tokio::test]
    async fn what_a_child_answers_is_checked() {
        let documents = |program: &str| Documents { program: Arc::new(program.into()), ..Documents::default() };
        let error = documents("/bin/echo").thumbnail(vec![]).await.unwrap_err();
        assert_eq!(error.to_string(), "Failed to parse image: its picture is none");
        assert_eq!(documents("/bin/echo").pdf_text(vec![]).await.unwrap(), "document pdf-text\n");
        let error = documents("/bin/false").pdf_text(vec![0; 1 << 20]).await.unwrap_err();
        assert_eq!(error.to_string(), "Failed to parse PDF: without a reason");
        assert!(matches!(documents("/nowhere").pdf_text(vec![]).await, Err(DocumentError::Child(_))));
        let error = documents("/bin/echo").pdf_text(vec![0; DOCUMENT_MAX + 1]).await.unwrap_err();
        assert_eq!(error.to_string(), "Failed to parse PDF: it is over 64 MiB");
    }
}
