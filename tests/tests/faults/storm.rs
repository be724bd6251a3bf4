//! One fault after the other, as chance decides.
