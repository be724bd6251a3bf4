//! Sections of the changelog. The section of unreleased changes comes first.

const UNRELEASED: &str = "## Unreleased\n";

/// Turns the unreleased changes into the section of a release, and starts a new unreleased section.
pub(super) fn release(text: &str, version: &str, date: &str) -> Result<String, String> {
    let (before, rest) =
        text.split_once(UNRELEASED).ok_or("the section `Unreleased` is missing")?;
    let end = rest.find("\n## ").unwrap_or(rest.len());
    if rest[..end].trim().is_empty() {
        return Err("there are no changes since the last release".to_owned());
    }
    Ok(format!("{before}{UNRELEASED}\n## {version} ({date})\n{rest}"))
}

/// Returns the section of a release.
pub(super) fn section<'a>(text: &'a str, version: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("\n## {version} ("))?;
    let (_, rest) = rest.split_once('\n')?;
    let end = rest.find("\n## ").unwrap_or(rest.len());
    Some(rest[..end].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.0.0 (2026-01-01)\n\n- Old.\n";

    #[test]
    fn unreleased_changes_become_the_section_of_the_release() {
        let released = release(TEXT, "1.1.0", "2026-02-01").unwrap();
        assert!(
            released.contains("\n## Unreleased\n\n## 1.1.0 (2026-02-01)\n\n- New.\n\n## 1.0.0 (")
        );
        assert_eq!(section(&released, "1.1.0").unwrap(), "- New.\n");
        assert_eq!(section(&released, "1.0.0").unwrap(), "- Old.\n");
        assert_eq!(section(&released, "1.1"), None);
        // A second release without new changes must be refused.
        assert!(release(&released, "1.2.0", "2026-03-01").is_err());
        assert!(release("# Changelog\n", "1.2.0", "2026-03-01").is_err());
    }
}
