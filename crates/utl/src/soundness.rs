//! Whether the pages of a backend file are sound, as far as commands refuse to go on with one that is not.

use quorate_storage::bolt::Problem;

use crate::failure::StatusError;

/// Findings that are told one by one.
const TOLD_MAX: usize = 10;

/// Refuses a state whose pages are not sound.
pub(crate) fn check_pages(problems: &[Problem]) -> Result<(), StatusError> {
    if problems.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = problems.iter().take(TOLD_MAX).map(Problem::to_string).collect();
    Err(StatusError::Unsound { count: problems.len(), told: told.join("\n") })
}
