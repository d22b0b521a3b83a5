//! What a client is told when something did not work.

use serde::{Deserialize, Serialize};

wire_type! {
    /// Body of every answer that is not 2xx.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ErrorBody {
        /// What went wrong.
        pub detail: Detail,
    }
}

wire_type! {
    /// What went wrong: the three shapes that clients of the contract tell apart by their JSON type.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)] // the contract's own shape: a string, an object or a list
    pub enum Detail {
        /// A sentence.
        Message(String),
        /// A path error, named as the clients' languages name it.
        Path(PathError),
        /// What did not validate.
        Invalid(Vec<Invalid>),
    }
}

wire_type! {
    /// A path error.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct PathError {
        /// `FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`, `FileExistsError` or `ValueError`.
        pub error: String,
        /// In words, with the path.
        pub message: String,
    }
}

wire_type! {
    /// One field that did not validate.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Invalid {
        /// Where: `body`, `path` or `query`, then the field.
        pub loc: Vec<String>,
        /// What is allowed.
        pub msg: String,
        /// Kind of the violation.
        #[serde(rename = "type")]
        pub kind: String,
    }
}
