//! BookSim network files, as PyTorchSim's machine files name them.

use super::{Resolver, file_error};
use crate::machine::error::{MachineError, code};
use crate::machine::text::MAX_TEXT_BYTES;
use crate::noc::{BookSimError, BookSimFile, NetworkParams, Topology};
use std::cell::RefCell;

/// A network file and the file of links it may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkFile {
    /// The path as it was named.
    pub path: String,
    /// The network.
    pub params: NetworkParams,
    /// Nodes.
    pub nodes: u64,
    /// Where the list of links was found, if the network is one.
    pub links_path: Option<String>,
    /// Keys of the file that have no effect on timing here.
    pub ignored: Vec<String>,
}

impl NetworkFile {
    /// Reads a network file and, for `anynet`, the list of links it names. One that is not where it
    /// is said to be is looked for beside the network file: such paths were written on other
    /// machines.
    ///
    /// # Errors
    ///
    /// [`code::NOT_MODELLED`] when the network asks for what the model does not have, [`code::FILE`]
    /// when a file is missing or is no network file.
    pub fn parse(
        path: &str,
        text: &str,
        resolver: &dyn Resolver,
    ) -> Result<NetworkFile, MachineError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(file_error(
                "booksim_config_path",
                path,
                "it is too large for a network file",
            ));
        }
        let links_path = RefCell::new(None);
        let files = |named: &str| {
            let (found, text) = find(path, named, resolver)?;
            *links_path.borrow_mut() = Some(found);
            (text.len() <= MAX_TEXT_BYTES).then_some(text)
        };
        let refused = |error: BookSimError| {
            let code = match &error {
                BookSimError::NotModelled { .. } => code::NOT_MODELLED,
                BookSimError::Spec(_) => code::NETWORK,
                _ => code::FILE,
            };
            let said = error.to_string().replace('`', "'");
            let error = MachineError::new(code, path, said);
            match code {
                code::FILE => error.hint("expected a BookSim network file"),
                _ => error,
            }
        };
        let file = BookSimFile::parse(text, files).map_err(refused)?;
        let (params, ignored) = (file.params().clone(), file.ignored().to_vec());
        let network = file.into_spec().map_err(refused)?;
        Ok(NetworkFile {
            path: path.to_owned(),
            params,
            nodes: u64::from(network.nodes()),
            links_path: links_path.into_inner(),
            ignored,
        })
    }

    /// The topology, in the words of our schema.
    pub fn topology(&self) -> &'static str {
        match self.params.topology {
            Topology::Crossbar { .. } => "crossbar",
            Topology::Fly { .. } => "fly",
            Topology::Mesh { .. } => "mesh",
            Topology::Chiplet { .. } => "chiplet",
            Topology::Graph { .. } => "graph",
        }
    }
}

/// The file as it is named, else one of the same name beside the file that names it.
fn find(from: &str, named: &str, resolver: &dyn Resolver) -> Option<(String, String)> {
    let folder = from.rfind('/').map_or("", |slash| &from[..=slash]);
    let name = named.rsplit('/').next().unwrap_or(named);
    [named.to_owned(), format!("{folder}{name}")]
        .into_iter()
        .find_map(|path| resolver.read(&path).ok().map(|text| (path, text)))
}
