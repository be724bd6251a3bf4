//! The layers of modules inside a crate: a layer imports from the layers below it, and never from those above.
//!
//! Every file of such a crate lies in a layer, apart from the few at its top that tie the layers together. An import of
//! a file at the top is followed to the file that defines the name, so a re-export opens no way around the rule.

use super::modules::{Modules, module_of};
use super::source::Source;

#[cfg(test)]
mod tests;

/// The layers of one crate.
struct Layers {
    /// The folder of its sources.
    src: &'static str,
    /// The layers, the uppermost first.
    layers: &'static [&'static str],
    /// The modules beside the layers.
    top: &'static [&'static str],
}

/// The crates that have layers.
const LAYERS: &[Layers] = &[Layers {
    src: "crates/member/src/",
    layers: &["duties", "requests", "threads"],
    top: &["error", "handles", "start"],
}];

/// Complains about imports from a lower layer to a higher one, and about files outside the layers.
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
                "{}: lies outside the layers of its crate ({})",
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
                "{from}: `{}` imports {} from {to}, but `{}` is the higher layer",
                layers[upper],
                names.join(", "),
                layers[lower]
            ));
        }
    }
}
