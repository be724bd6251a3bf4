//! Rows shown one by one, as many as there are, so that none is kept.

use crate::failure::Failure;
use crate::report::{Cell, Column, Format, Report};
use crate::session::Session;

/// Rows under columns, on their way to standard output.
pub(crate) struct Lines<'s> {
    session: &'s Session,
    format: Format,
    columns: &'static [Column],
}

impl<'s> Lines<'s> {
    /// Refuses a format that has to know all rows before the first is shown.
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
