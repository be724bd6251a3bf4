//! The findings about a directory or file, in order, each with a grade.

use std::path::Path;

use crate::report::{Cell, Column, Report};

const COLUMNS: &[Column] = &[
    Column::new("grade", "grade", "Grade"),
    Column::new("part", "part", "Part"),
    Column::new("finding", "finding", "Finding"),
];

const COLUMNS_OF_FILES: &[Column] =
    &[Column::new("file", "file", "File"), COLUMNS[0], COLUMNS[1], COLUMNS[2]];

/// The grade of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    /// The file is as expected.
    Sound,
    /// The finding is unusual, but does not prevent a member from starting.
    Notable,
    /// The files are sound, but this version of Quorate does not start on them.
    Refused,
    /// A member would not start, or would lack acknowledged changes.
    Damaged,
}

/// The findings, in order.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    list: Vec<(Grade, &'static str, String)>,
}

impl Findings {
    pub(super) fn sound(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Sound, part, says.into()));
    }

    pub(super) fn notable(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Notable, part, says.into()));
    }

    pub(super) fn refused(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Refused, part, says.into()));
    }

    /// Returns the first reason for which a member would refuse sound files.
    pub(super) fn refusal(&self) -> Option<&str> {
        let mut refused = self.list.iter().filter(|(grade, ..)| *grade == Grade::Refused);
        refused.next().map(|(.., says)| says.as_str())
    }

    pub(super) fn damaged(&mut self, part: &'static str, says: impl Into<String>) {
        self.list.push((Grade::Damaged, part, says.into()));
    }

    pub(super) fn damage_count(&self) -> usize {
        self.list.iter().filter(|(grade, ..)| *grade == Grade::Damaged).count()
    }

    /// Returns the findings that report damage. If there are any, the files must not be used to start a member or to
    /// recover a cluster.
    pub(crate) fn damage(&self) -> impl Iterator<Item = String> {
        let damaged = self.list.iter().filter(|(grade, ..)| *grade == Grade::Damaged);
        damaged.map(|(_, part, says)| format!("{part}: {says}"))
    }

    pub(super) fn report(&self) -> Report {
        Report::list(COLUMNS, self.rows().collect())
    }

    fn rows(&self) -> impl Iterator<Item = Vec<Cell>> {
        self.list.iter().map(|(grade, part, says)| {
            let grade = match grade {
                Grade::Sound => "ok",
                Grade::Notable => "note",
                Grade::Refused => "REFUSED",
                Grade::Damaged => "DAMAGED",
            };
            [grade, *part, says.as_str()].map(text).to_vec()
        })
    }
}

/// Returns the findings about several files. The first column names the file.
pub(super) fn report_of_files(files: &[(&Path, Findings)]) -> Report {
    let rows = files.iter().flat_map(|(path, findings)| {
        let name = path.display().to_string();
        findings.rows().map(move |row| [vec![text(&name)], row].concat())
    });
    Report::list(COLUMNS_OF_FILES, rows.collect())
}

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}
