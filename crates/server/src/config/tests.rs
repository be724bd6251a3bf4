//! The whole of configuration, from arguments to a configuration or an exit.
