//! Layers of modules inside a crate: a layer imports only from the layers below it.
//!
//! Every file of a crate with layers belongs to a layer, except for the few modules at the top that connect the layers.
//! An import from one of these modules is followed to the file that defines the name, so a re-export cannot bypass the
//! rule.

use super::modules::{Modules, module_of};
use super::source::Source;

#[cfg(test)]
mod tests;

/// The layers of one crate.
struct Layers {
    /// The directory of the crate's sources.
    src: &'static str,
    /// The layers, highest first.
    layers: &'static [&'static str],
    /// The modules at the top, which belong to no layer.
    top: &'static [&'static str],
}

/// The crates with layers.
const LAYERS: &[Layers] = &[Layers {
    src: "crates/member/src/",
    layers: &["duties", "requests", "threads"],
    top: &["data_store", "handles", "start"],
}];

/// Reports imports by a lower layer from a higher layer, and files outside the layers.
pub(super) fn check_layers(sources: &[Source], complaints: &mut Vec<String>) {
    for crate_layers in LAYERS {
        check_crate(crate_layers, sources, complaints);
    }
}

fn check_crate(
    Layers { src, layers, top }: &Layers,
    sources: &[Source],
    complaints: &mut Vec<String>,
) {
    let first = |path| -> Option<&str> {
        let path: &str = path;
        path.strip_prefix(src).and_then(module_of)?.first().copied()
    };
    let layer_of = |path| {
        let first = first(path)?;
        layers.iter().position(|layer| *layer == first)
    };
    for source in sources {
        if let Some(first) = first(&source.path)
            && !layers.contains(&first)
            && !top.contains(&first)
        {
            complaints.push(format!(
                "{}: belongs to no layer of its crate ({})",
                source.path,
                layers.join(", ")
            ));
        }
    }
    for ((from, to), names) in Modules::read(src, sources).imports() {
        let (Some(upper), Some(lower)) = (layer_of(from), layer_of(to)) else { continue };
        if upper > lower {
            let names: Vec<_> = names.into_iter().collect();
            complaints.push(format!(
                "{from}: `{}` imports {} from {to}, but `{}` is a higher layer",
                layers[upper],
                names.join(", "),
                layers[lower]
            ));
        }
    }
}
