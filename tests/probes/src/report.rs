//! The table of what was tried, and its closing line.

use std::fmt::Write as _;

/// Whether the probe has been shown to work where nothing stops it.
#[derive(Debug, Clone)]
pub enum Control {
    /// It does; what it answered there.
    Works(String),
    /// It does not: the probe shows nothing.
    Fails(String),
    /// It cannot be shown on this machine, or needs what this machine lacks: the row does not count.
    LeftOut(String),
}

/// One line of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was tried.
    pub probe: String,
    /// What should come of it.
    pub expected: String,
    /// What came of it.
    pub got: String,
    /// Whether that is what should.
    pub held: bool,
    /// Whether the probe works.
    pub control: Control,
}

/// Every line so far.
#[derive(Debug, Default)]
pub struct Report {
    tried: usize,
    escaped: usize,
    failed: usize,
    /// The lines of those, each after the part of the table that it is in.
    wrong: Vec<String>,
    class: String,
}

impl Control {
    /// [`Self::Works`] if `works`, else [`Self::Fails`].
    #[must_use]
    pub fn of(works: bool, said: impl Into<String>) -> Self {
        if works { Self::Works(said.into()) } else { Self::Fails(said.into()) }
    }
}

impl Report {
    /// Begin a part of the table.
    pub fn class(&mut self, name: &str) {
        name.clone_into(&mut self.class);
        println!("\n== {name}\n{:<34} {:<26} {:<30} control", "probe", "expected", "got");
    }

    /// Print and count a line.
    pub fn add(&mut self, row: &Row) {
        let control = match &row.control {
            Control::Works(said) => {
                self.tried += 1;
                said.clone()
            }
            Control::Fails(said) => {
                self.tried += 1;
                self.failed += 1;
                format!("CONTROL FAILED: {said}")
            }
            Control::LeftOut(why) => format!("left out: {why}"),
        };
        let counts = !matches!(row.control, Control::LeftOut(_));
        let mut line =
            format!("{:<34} {:<26} {:<30} {}", row.probe, row.expected, cut(&row.got, 200), cut(&control, 200));
        if !row.held {
            // What gets out is told even where the control cannot be had.
            self.tried += usize::from(!counts);
            self.escaped += 1;
            let _ = write!(line, "   ESCAPED");
        }
        println!("{}", line.trim_end());
        if !row.held || matches!(row.control, Control::Fails(_)) {
            self.wrong.push(format!("{}: {}", self.class, line.trim_end()));
        }
    }

    /// A part of the program broke before it could tell.
    pub fn broken(&mut self, class: &str, why: &str) {
        self.tried += 1;
        self.failed += 1;
        let line = format!("{class}: CONTROL FAILED: broke off: {}", cut(why, 2000));
        println!("{line}");
        self.wrong.push(line);
    }

    /// What is not as it should be, once more: whoever sees the end of a long output alone sees it there.
    pub fn repeat(&self) {
        if !self.wrong.is_empty() {
            println!("\n== what is wrong");
            self.wrong.iter().for_each(|line| println!("{line}"));
        }
    }

    /// The one line at the end, and whether all is well.
    #[must_use]
    pub fn closing(&self) -> (String, bool) {
        let line = format!("probes: {} tried, {} escaped, {} controls failed", self.tried, self.escaped, self.failed);
        (line, self.escaped == 0 && self.failed == 0)
    }
}

/// On one line, and not too long.
fn cut(text: &str, most: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most).collect()
}
