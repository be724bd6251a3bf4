//! Checks whether the pages of a backend file are sound. Commands refuse a file with unsound pages.

use quorate_storage::bolt::Problem;

use crate::failure::StatusError;

/// Maximum number of findings listed in the message.
const DESCRIBED_MAX: usize = 10;

/// Refuses a file with unsound pages.
pub(crate) fn check_pages(problems: &[Problem]) -> Result<(), StatusError> {
    if problems.is_empty() {
        return Ok(());
    }
    let described: Vec<String> =
        problems.iter().take(DESCRIBED_MAX).map(Problem::to_string).collect();
    Err(StatusError::Unsound { count: problems.len(), described: described.join("\n") })
}
