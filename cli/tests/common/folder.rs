//! A folder of its own for a test of the command line.
//!
//! Invariant: it is empty at first, and gone with the test.

#![allow(dead_code)] // each test file uses its share

use std::fs;
use std::path::PathBuf;

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let name = format!("{}-{test}-{}", env!("CARGO_CRATE_NAME"), std::process::id());
        let folder = std::env::temp_dir().join(format!("overlap-gemm-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// A file with that in it.
    pub fn file(&self, name: &str, content: &impl ToString) -> String {
        fs::write(self.0.join(name), content.to_string()).unwrap();
        self.path(name)
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
