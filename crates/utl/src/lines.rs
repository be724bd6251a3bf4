//! Prints rows one at a time as they are found, so that they need not all fit in memory.

use crate::failure::Failure;
use crate::report::{Cell, Column, Format, Report};
use crate::session::Session;

/// Prints rows of a table to standard output.
pub(crate) struct Lines<'s> {
    session: &'s Session,
    format: Format,
    columns: &'static [Column],
}

impl<'s> Lines<'s> {
    /// Creates the printer. Rejects output formats that need all rows before they can print the first row.
    pub(crate) fn new(session: &'s Session, columns: &'static [Column]) -> Result<Self, Failure> {
        let format = session.format()?;
        match format {
            Format::Simple | Format::Json | Format::Fields => Ok(Self { session, format, columns }),
            Format::Table => Err(Failure::FormatOfThis("table")),
            Format::Protobuf => Err(Failure::FormatOfThis("protobuf")),
        }
    }

    pub(crate) fn add(&self, row: Vec<Cell>) -> Result<(), Failure> {
        let text = self.format.render(&Report::row(self.columns, row))?;
        self.session.put(text.as_bytes())
    }

    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.session.flush()
    }
}
