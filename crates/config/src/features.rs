//! Feature gates: switches for behaviour that may still change, set by `--feature-gates A=true,B=false`.
//!
//! # Invariants
//!
//! * A gate that is set by name keeps its value, regardless of the values of `AllAlpha` and `AllBeta` and of the order
//!   of the gates.
//! * The printed form contains exactly the gates that are set, by name or in bulk, sorted by name.

use std::collections::BTreeMap;
use std::fmt;

/// The maturity of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Disabled by default.
    Alpha,
    /// Enabled by default.
    Beta,
}

impl Stage {
    /// Returns the name of the stage in the help text and in the metric `etcd_server_feature_enabled`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
        }
    }
}

macro_rules! gates {
    ($($(#[$doc:meta])* $gate:ident: $stage:ident, $default:literal;)*) => {
        /// A feature gate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FeatureGate { $($(#[$doc])* $gate,)* }

        impl FeatureGate {
            /// Every gate, sorted by name.
            pub const ALL: &'static [Self] = &[$(Self::$gate),*];

            /// Returns the name of the gate in flags, logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$gate => stringify!($gate),)* }
            }

            /// Returns the maturity of the gate.
            pub const fn stage(self) -> Stage {
                match self { $(Self::$gate => Stage::$stage,)* }
            }

            /// Returns the default state of the gate.
            pub const fn default_state(self) -> bool {
                match self { $(Self::$gate => $default,)* }
            }
        }
    };
}

gates! {
    /// Sets all alpha gates that are not set by name.
    AllAlpha: Alpha, false;
    /// Sets all beta gates that are not set by name.
    AllBeta: Beta, false;
    /// The leader compares compaction hashes of the members.
    CompactHashCheck: Alpha, false;
    /// A lease is renewed without waiting for the applied index.
    FastLeaseKeepAlive: Beta, true;
    /// The members compare their data before they serve the first request.
    InitialCorruptCheck: Alpha, false;
    /// The leader replicates the remaining time of leases.
    LeaseCheckpoint: Alpha, false;
    /// The members store the replicated remaining time of leases, even while the cluster version is below 3.6.
    LeaseCheckpointPersist: Alpha, false;
    /// Lease revocations are still accepted when other requests are refused because too many entries are not yet
    /// applied.
    PriorityRequest: Alpha, false;
    /// Connections to peers use the first advertised address as their local address.
    SetMemberLocalAddr: Alpha, false;
    /// The health service reports "not serving" while the backend is defragmented.
    StopGRPCServiceOnDefrag: Alpha, false;
    /// Reads inside write transactions share the read buffer.
    TxnModeWriteWithSharedBuffer: Beta, true;
}

impl FeatureGate {
    /// Returns why a gate has no effect in this version; `None` for a gate that has an effect.
    const fn inert(self) -> Option<&'static str> {
        match self {
            Self::TxnModeWriteWithSharedBuffer => Some("there is no buffer to share or to copy"),
            Self::AllAlpha
            | Self::AllBeta
            | Self::CompactHashCheck
            | Self::FastLeaseKeepAlive
            | Self::InitialCorruptCheck
            | Self::LeaseCheckpoint
            | Self::LeaseCheckpointPersist
            | Self::PriorityRequest
            | Self::SetMemberLocalAddr
            | Self::StopGRPCServiceOnDefrag => None,
        }
    }
}

/// The reason why a value of `--feature-gates` is refused. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureGateError {
    /// The gate is unknown.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    /// An entry has no `=`.
    #[error("missing bool value for {0}")]
    MissingValue(String),
    /// A value is neither true nor false.
    #[error(
        "invalid value of {name}={value}, err: strconv.ParseBool: parsing {}: invalid syntax",
        quorate_gotext::quote::go_quote(value)
    )]
    InvalidValue {
        /// The name of the gate.
        name: String,
        /// The given value.
        value: String,
    },
}

/// The states of all gates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    named: BTreeMap<FeatureGate, bool>,
}

impl FeatureGates {
    /// Returns whether a gate is enabled.
    pub fn is_enabled(&self, gate: FeatureGate) -> bool {
        self.set_state(gate).unwrap_or(gate.default_state())
    }

    /// Returns the gates that differ from their default but have no effect, each with the reason.
    pub(super) fn inert(&self) -> impl Iterator<Item = (FeatureGate, &'static str)> {
        let turned = |gate: &FeatureGate| self.is_enabled(*gate) != gate.default_state();
        let all = FeatureGate::ALL.iter().copied().filter(turned);
        all.filter_map(|gate| gate.inert().map(|reason| (gate, reason)))
    }

    /// Sets the gates in a list such as `A=true,B=false`, in addition to the gates that are already set.
    ///
    /// # Errors
    ///
    /// An entry is invalid. In this case, none of the gates in the list is set.
    pub fn set(&mut self, text: &str) -> Result<(), FeatureGateError> {
        let mut named = BTreeMap::new();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (name, value) = match entry.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim()),
                None => return Err(FeatureGateError::MissingValue(entry.trim().to_owned())),
            };
            let state = quorate_gotext::number::parse_bool(value).ok_or_else(|| {
                FeatureGateError::InvalidValue { name: name.to_owned(), value: value.to_owned() }
            })?;
            named.insert(name, state);
        }
        let known = |name: &str| FeatureGate::ALL.iter().copied().find(|gate| gate.name() == name);
        let gates = named
            .into_iter()
            .map(|(name, state)| match known(name) {
                Some(gate) => Ok((gate, state)),
                None => Err(FeatureGateError::Unknown(name.to_owned())),
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.named.extend(gates);
        Ok(())
    }

    /// Returns the state to which a gate was set, by name or in bulk; `None` if it was not set.
    fn set_state(&self, gate: FeatureGate) -> Option<bool> {
        let bulk = match gate.stage() {
            Stage::Alpha => FeatureGate::AllAlpha,
            Stage::Beta => FeatureGate::AllBeta,
        };
        self.named.get(&gate).or_else(|| self.named.get(&bulk)).copied()
    }
}

impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set =
            FeatureGate::ALL.iter().filter_map(|gate| self.set_state(*gate).map(|on| (gate, on)));
        for (position, (gate, state)) in set.enumerate() {
            let comma = if position > 0 { "," } else { "" };
            write!(f, "{comma}{}={state}", gate.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(text: &str) -> FeatureGates {
        let mut gates = FeatureGates::default();
        gates.set(text).unwrap();
        gates
    }

    #[test]
    fn a_feature_gate_set_by_name_overrides_all_alpha_and_all_beta() {
        for text in ["AllAlpha=true,LeaseCheckpoint=false", "LeaseCheckpoint=false,AllAlpha=true"] {
            let gates = gates(text);
            assert!(!gates.is_enabled(FeatureGate::LeaseCheckpoint));
            assert!(gates.is_enabled(FeatureGate::PriorityRequest));
            assert!(gates.is_enabled(FeatureGate::FastLeaseKeepAlive));
        }
        assert!(!gates("AllBeta=0").is_enabled(FeatureGate::FastLeaseKeepAlive));
    }

    #[test]
    fn only_feature_gates_that_are_set_are_printed() {
        assert_eq!(gates("").to_string(), "");
        assert_eq!(
            gates(" PriorityRequest = t ,CompactHashCheck=F,").to_string(),
            "CompactHashCheck=false,PriorityRequest=true"
        );
        assert_eq!(
            gates("AllBeta=false").to_string(),
            "AllBeta=false,FastLeaseKeepAlive=false,TxnModeWriteWithSharedBuffer=false"
        );
    }

    #[test]
    fn an_invalid_feature_gate_is_refused_and_changes_nothing() {
        let mut gates = gates("LeaseCheckpoint=true");
        let mut refused = |text: &str| gates.set(text).unwrap_err().to_string();
        assert_eq!(refused("PriorityRequest=true,X=true"), "unrecognized feature gate: X");
        assert_eq!(refused("PriorityRequest"), "missing bool value for PriorityRequest");
        assert_eq!(
            refused("X=y"),
            "invalid value of X=y, err: strconv.ParseBool: parsing \"y\": invalid syntax"
        );
        assert_eq!(gates.to_string(), "LeaseCheckpoint=true");
    }

    #[test]
    fn feature_gates_are_sorted_by_name() {
        assert!(FeatureGate::ALL.is_sorted_by_key(|gate| gate.name()));
    }
}
