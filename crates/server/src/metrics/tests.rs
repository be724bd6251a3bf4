//! The text of a scrape.
