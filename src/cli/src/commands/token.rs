//! `token`: a secret for the service, made here.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::args::TokenCommand;
use crate::error::Failure;
use crate::output::print;

/// Do what is asked of tokens.
pub fn token(command: &TokenCommand) -> Result<(), Failure> {
    let TokenCommand::New { file } = command;
    let token = new();
    let Some(path) = file else { return print(format!("{token}\n")) };
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = made.and_then(|mut file| file.write_all(format!("{token}\n").as_bytes()));
    written.map_err(|source| Failure::local("write the token to", path.display().to_string(), source))
}

/// Two random identifiers of 122 bits each, from the kernel's generator, in 43 characters of the URL alphabet.
fn new() -> String {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    bytes[16..].copy_from_slice(Uuid::new_v4().as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_another_each_time() {
        let (one, other) = (new(), new());
        assert_eq!(one.len(), 43);
        assert_ne!(one, other);
        assert!(one.bytes().all(|b| b.is_ascii_graphic()));
    }

    #[test]
    fn a_file_is_its_owner_s_alone_and_never_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let command = TokenCommand::New { file: Some(file.clone()) };
        token(&command).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read_to_string(&file).unwrap();
        assert!(token(&command).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), first);
    }
}
